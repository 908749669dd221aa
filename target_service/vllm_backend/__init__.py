"""The target on vLLM: the engine, its worker, the remote proposer and the KV connector.

Lives here: what only the target does to vLLM. Not here: what the speculator does too (`vllm_hooks/`).
"""
