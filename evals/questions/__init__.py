"""Questions of people about texts of people, from a user's file.

Lives here: the file's form, the scores of answers, the ways to answer that are compared, and what is kept of marked
evidence. Not here: the loop over prompts, its journal and the pages of worse answers (`evals.run`).
"""
