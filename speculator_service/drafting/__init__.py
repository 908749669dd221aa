"""Drafts for the target: one session per answer, and drafting rounds.

Lives here: the part that all engines share. Not here: the engines that decode the drafts.
"""
