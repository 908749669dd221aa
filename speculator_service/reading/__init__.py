"""How the speculator reads a prompt: as a whole, or in windows.

Lives here: the plan of the windows, and the read of all of them. Not here: how a read is scored (`scoring`).
"""
