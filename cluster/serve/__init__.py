"""The deployment on Ray Serve: the application, its autoscaling, and the Ray that `skim serve` starts.

Lives here: applications, placement, checks before the start. Not here: the code that answers requests.
"""
