"""A rendered prompt: its contents, tokens and protected spans.

Pure: no Ray, no vLLM, no state of a request.
"""
