"""An agent's answers: conversations of several turns with results of tools, scored by rule.

Lives here: the conversations (`families.py`, `lookups.py`, `edits.py`, `bfcl.py`), the execution of an answer's code,
the turns as a router runs them, with catch-up between two of them, and the table. Not here: the journal (`evals/run`).
"""
