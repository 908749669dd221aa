"""Benchmarks of speed and cost. The systems that are compared take turns in one run on one machine.

Lives here: the measurements behind `skim bench`. Each returns a dict that also describes the machine. Not here: tests.
"""
