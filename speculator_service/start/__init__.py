"""What a speculator does before it serves: it finds its retrieval heads if it has no head profile, and probes itself.

Not here: how heads score a prompt (`speculator_service.scoring`).
"""
