"""The calls to the pools over Ray Serve: affinity, availability, migration, wake-up.

Not here: which mode a prompt runs in (`router.decision`).
"""
