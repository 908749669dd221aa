"""Sessions of agents, turn by turn: how many of them a KV cache holds."""
