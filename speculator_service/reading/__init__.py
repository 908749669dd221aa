"""How the speculator reads a prompt: as a whole, or in windows.

Lives here: the plan of the windows, which replica reads which, and the read of all of them. Not here: how a read is
scored (`scoring`), and how the replicas reach each other (`actors.peers`).
"""
