"""The target on vLLM: the engine, its worker, the remote proposer and the KV connector.

Lives here: changes to vLLM for the target alone. Not here: changes that the speculator needs too (`vllm_hooks/`).
"""
