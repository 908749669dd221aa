"""The text of a prompt: its characters, lines, units and words, and which units share an identifier.

Not here: labels (`router.prompt.structure`), and speech and material (`router.prompt.task`).
"""
