"""An agent's answers: conversations of several turns with results of tools, scored by rule.

Lives here: the conversations (`families.py`, `edits.py`, `bfcl.py`), the execution of an answer's code, and the turns
as a router runs them, with catch-up between two of them. Not here: the table (`evals.results.agents`).
"""
