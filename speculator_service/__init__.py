"""The speculator: it reads the whole prompt, scores the tokens with its own attention, and chooses what to keep.

Lives here: scoring, selection, drafting, and the engines behind them (only `vllm_backend/` imports vLLM).
Not here: the target, Ray, HTTP.
"""
