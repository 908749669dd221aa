"""The deployment on Ray Serve: the application, its autoscaling, and the Ray cluster that `skim serve` starts.

Lives here: applications, placement, checks before the start. Not here: code that handles requests.
"""
