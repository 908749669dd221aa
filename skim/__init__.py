"""Skim's Python API: a speculator and a target in this process, without Ray and HTTP (docs/python.md).

Lives here: `Pair` and the names that users import, its engines and prompts, which the tools, benchmarks and evals
share. Not here: anything that serves several clients. Importing it loads neither Ray, torch, transformers nor vLLM.
"""

from kv_transfer.messages import KeptPrompt
from kv_transfer.options import DecodeOptions
from router.options.request import PrefillOptions
from skim.pair import Pair, PairAnswer
from skim.selection import PairSelection
from skim_common.errors import SkimError

__all__ = ["DecodeOptions", "KeptPrompt", "Pair", "PairAnswer", "PairSelection", "PrefillOptions", "SkimError"]
