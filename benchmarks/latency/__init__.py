"""Time to first token, later turns, the router's own overhead."""
