"""The target's side of drafting: which requests get drafts, how many tokens, and the exchange with the drafters.

Lives here: bookkeeping without vLLM. Not here: the drafter, and the verification, which vLLM does.
"""
