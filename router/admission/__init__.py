"""Who may enter, and when: API keys, rate limits, the fair queue, load shedding.

Not here: which replica gets a request (`router.pools`).
"""
