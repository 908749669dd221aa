"""Skim's Python API: a speculator and a target in this process, without Ray and HTTP (docs/python.md).

Lives here: the names that users import. Not here: their code (`cluster/in_process/`). Importing it loads neither Ray,
torch, transformers nor vLLM.
"""

from cluster.in_process.pair import Pair, PairAnswer
from cluster.in_process.selection import PairSelection
from kv_transfer.messages import KeptPrompt
from kv_transfer.options import DecodeOptions
from router.options.request import PrefillOptions
from skim_common.errors import SkimError

__all__ = ["DecodeOptions", "KeptPrompt", "Pair", "PairAnswer", "PairSelection", "PrefillOptions", "SkimError"]
