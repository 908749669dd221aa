"""The Ray Serve deployment classes of the two pools, thin: start an engine, pass bytes, report health.

Lives here: lifecycle. Not here: algorithms, HTTP, placement (that is data, in cluster/).
"""
