"""The families of an agent's conversations by name."""

import inspect
from collections.abc import Mapping

from evals.agents.bfcl import BFCL, bfcl_conversations
from evals.agents.conversation import Make
from evals.agents.edits import edit
from evals.agents.lookups import call, correction, fact

AGENTS: Mapping[str, Make] = {"fact": fact, "correction": correction, "call": call, "edit": edit}


def describe_family(family: str) -> str:
    """The family and its metric: the docstring of its function on one line."""
    made = bfcl_conversations if family == BFCL else AGENTS[family]
    return " ".join((inspect.getdoc(made) or "").split("\n\n")[0].split())
