"""The task of a prompt: which texts of a user's turns address the assistant, and which of them can be the task.

Pure functions on a text and character ranges. What selection does with them is in `router.prompt.protected_spans`.
"""
