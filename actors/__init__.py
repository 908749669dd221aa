"""The Ray Serve deployment classes of the two pools. They start an engine, pass bytes and report health.

Lives here: the lifecycle of a replica. Not here: algorithms, HTTP, placement (cluster/ describes it as data).
"""
