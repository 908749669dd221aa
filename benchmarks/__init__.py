"""What Skim gives and what it costs, as ratios from interleaved runs on one machine.

Lives here: the measurements behind `skim bench`. Each returns a dict that says on what it ran. Not here: tests.
"""
