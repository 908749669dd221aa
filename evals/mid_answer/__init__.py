"""Recall in mid-answer, measured: dropped chunks are added while the target answers.

Lives here: the tasks, the recall, the measurement (`skim bench recall`) and its result. Not here: anything of serving,
which has no recall; docs/results.md says why.
"""
