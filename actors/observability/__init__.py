"""What the two actors tell of themselves: metrics, trace spans and log records.

Lives here: names, units and exporters. Not here: what is measured, which the engines count.
"""
