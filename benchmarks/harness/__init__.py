"""The systems that are compared, and their clients.

Not here: what is measured.
"""
