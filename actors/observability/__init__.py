"""Metrics, trace spans and log records of the two actors.

Lives here: names, units and exporters. Not here: the counting, which the engines do.
"""
