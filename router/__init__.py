"""The OpenAI HTTP server: request options, the dense-or-speculative decision, the calls to the two pools.

Lives here: vLLM's own HTTP app over an engine client without an engine (`vllm_front/`). Not here: model weights.
"""
