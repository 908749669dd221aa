"""Labels: the parts of a text that name what follows them, such as headings, tags, table headers and speakers.

Here: where they stand and which label names which. Not here: units
(`router.prompt.text.units`) and what is kept of them.
"""
