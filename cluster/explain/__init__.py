"""The page of `skim explain`: a prompt with what was kept of it, as one HTML file.

The numbers are made in `router/explain/explained.py`. Commands are in `cluster/commands/`.
"""
