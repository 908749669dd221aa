"""Structure: which parts of a text name others, by the text's own recurring lines.

Here: where labels stand and which label names which. Not here: units (`router.prompt.text.units`) and what is kept of
them.
"""
