"""Every change to Ray's own classes. Each module names the symbols that it needs (`HOOKED`), checked at the start.

Not here: use of Ray's public interface.
"""
