"""The target's side of drafting: which requests are drafted for, how many tokens, and what comes back.

Lives here: plain bookkeeping without vLLM. Not here: the drafter, and the verification, which is vLLM's.
"""
