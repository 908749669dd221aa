"""Drafts for the target: one session per answer, drafting rounds, and drafting ahead while the target verifies.

Lives here: the part that all engines share. Not here: the engines that decode the drafts.
"""
