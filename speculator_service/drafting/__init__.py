"""Drafts for the target: one session per answer, rounds, and drafting ahead while the target verifies.

Lives here: what is the same for every engine. Not here: the engines that decode the drafts.
"""
