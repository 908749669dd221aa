"""A replica starts, is watched, and ends.

Lives here: start with retries, engine processes and their watch. Not here: changes of Ray (`actors.ray_hooks`).
"""
