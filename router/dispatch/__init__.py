"""One prompt from the decision to the answer. `dispatcher.py` shows the whole way.

Not here: HTTP, vLLM.
"""
