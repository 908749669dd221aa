"""Every change to Ray's own classes, and every use of a name of Ray that is not public.

Each module names the symbols that it needs (`HOOK`); `check.check_ray` compares them with the installed Ray.
Not here: use of Ray's public interface, and of Ray's environment variables.
"""
