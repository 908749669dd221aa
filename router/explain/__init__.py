"""What was kept of a prompt and why, held for later questions.

Not here: the explain page (`cluster.explain`).
"""
