"""Decode speculation in vLLM: its own methods, remote drafting on both model runners, drafts' distributions.

Not here: the exchange with the speculator (`target_service.drafting`).
"""
