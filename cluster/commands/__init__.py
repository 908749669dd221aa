"""The `skim` command line.

Lives here: the commands and what they print. Not here: `skim bench` and `skim eval`, which live with what they run.
"""
