"""Every change to Ray's own classes, and every use of a name of Ray that is not public.

docs/hooks.md has a table of them. Not here: use of Ray's public interface, and of Ray's environment variables.
"""
