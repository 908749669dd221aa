"""The time and the memory of one engine: a model on some ranks of a machine. Pure, but for reading a config."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.plan.formulas import all_reduce, roofline
from cluster.plan.gpus import GIB, USABLE, WORKING_GIB, Gpu, Machine
from kv_transfer.options import SelectionOptions
from kv_transfer.windows import AGAIN_SHARE, MOST_AGAIN, WHOLE
from skim_common.errors import ModelError
from skim_common.models.costs import (
    LINEAR,
    CacheCost,
    Read,
    ReadCost,
    cache_cost,
    expert_count,
    kv_head_count,
    query_size,
    read_cost,
)
from skim_common.models.info import text_config
from skim_common.models.size import ModelSize, model_size
from skim_common.models.source import local_folder

CHUNK = 8192
"""vLLM's `max_num_batched_tokens` on CUDA: the tokens of a prefill step."""
CAPTURED_ROWS = 1024
"""Rows of the speculator's buffer of captured queries, besides one per request (`scored_requests.STEP_ROWS`)."""
ACTIVATION = 2
"""Bytes of a number in activations."""
LOOK_AHEAD = 8
"""Tokens that the speculator decodes ahead of a prompt that it reads as a whole, as `SelectionOptions`."""
WINDOW = SelectionOptions().window_tokens
FRAME = 64
"""Assumed tokens of the question and the template in each window."""


@dataclass(frozen=True, slots=True)
class Model:
    """The shape of a model, as far as the plan needs it. size: `skim_common.models.size`.

    head: numbers of the output head. queries: numbers of one token's queries in all layers. kv_ranks: the most ranks
    that divide the KV cache. idle: parameters of the routed experts that do not compute a token. chosen: the share of
    those that do.
    """

    name: str
    size: ModelSize
    read: ReadCost
    cache: CacheCost
    head: int
    hidden: int
    layers: int
    heads: int
    vocabulary: int
    queries: int
    kv_ranks: int
    idle: int = 0
    chosen: float = 1.0

    @classmethod
    def load(cls, path: str) -> "Model":
        """The model in a folder or a repository of the hub. Only its small files are read. Raises ModelError."""
        text = text_config(path)
        return cls.of(path, text, model_size(Path(local_folder(path, weights=False))))

    @classmethod
    def of(cls, name: str, text: Any, size: ModelSize) -> "Model":
        """The model of a transformers config. Raises ModelError if its shape is not one that the plan knows."""
        cost = read_cost(text)
        if cost is LINEAR or not size.parameters or not size.per_token:
            raise ModelError(f"model {name}: its config has no usual shape, so its cost cannot be planned")
        head, experts = text.vocab_size * text.hidden_size, expert_count(text)
        embeddings = head if getattr(text, "tie_word_embeddings", False) else 2 * head
        return cls(
            name,
            size,
            cost,
            cache_cost(text),
            head=head,
            hidden=text.hidden_size,
            layers=text.num_hidden_layers,
            heads=text.num_attention_heads,
            vocabulary=text.vocab_size,
            queries=text.num_hidden_layers * text.num_attention_heads * query_size(text),
            kv_ranks=kv_head_count(text),
            idle=max(size.parameters - size.per_token - embeddings, 0) if experts else 0,
            chosen=text.num_experts_per_tok / experts if experts else 1.0,
        )

    def touched(self, tokens: float) -> float:
        """The parameters that a step of `tokens` tokens reads: each token chooses its experts independently."""
        computing = self.read.linear / 2 + self.head
        if not self.idle:
            return computing
        others: float = 1 - (1 - self.chosen) ** max(tokens - 1, 0.0)  # of the experts that one token leaves idle
        return computing + others * self.idle


@dataclass(frozen=True, slots=True)
class Memory:
    """GiB of one GPU. working: with CUDA graphs. buffers: of queries, or of draft distributions. kv: what is left.

    sessions: answers that fit into the KV caches of the ranks at the same time.
    """

    weights: float
    working: float
    buffers: float
    kv: float
    sessions: int


@dataclass(frozen=True, slots=True)
class PlannedEngine:
    """A model on `ranks` equal machines with tensor parallelism. weight_bits, kv_bits: of a number that is stored.

    windows: as a speculator it reads prompts in windows (`read: auto` with a head profile). window: tokens of each.
    again: it reads the best of several windows once more (`read_again`).
    """

    model: Model
    machine: Machine
    ranks: int = 1
    weight_bits: float = 16
    kv_bits: float = 16
    chunk: int = CHUNK
    windows: bool = False
    window: int = WINDOW
    again: bool = True

    def kv_bytes(self, tokens: float) -> float:
        """KV bytes of a prompt on each rank. If there are more ranks than KV heads, some hold copies."""
        return self.model.cache.numbers(tokens) * self.kv_bits / 8 / min(self.ranks, self.model.kv_ranks)

    def read_s(self, read: Read, prompts: int = 1) -> float:
        """Seconds in which so many equal prompts are read together, without other work: to their first tokens."""
        tokens = prompts * read.tokens
        steps = -(-tokens // self.chunk)
        linear = prompts * (self.model.read.linear_flops(read) + 2 * self.model.head)
        weights = steps * self.model.touched(min(tokens, self.chunk))
        attention = prompts * self.model.read.attention_flops(read)
        kv = prompts * self.kv_bytes(read.cached + read.tokens)
        return self._seconds(linear, weights, attention, kv, tokens, steps)

    def select_s(self, read: Read) -> float:
        """Seconds in which a speculator reads and scores a prompt: all windows together, through all layers and on one
        replica, and then the second read, which is never cached; or the prompt as a whole, and the look-ahead after it.
        """
        tokens = read.cached + read.tokens
        if not self.windows:
            return self.read_s(read) + LOOK_AHEAD * self.step_s(1, tokens)
        count = 1 if tokens <= WHOLE * self.window else -(-tokens // self.window)
        first = self.read_s(Read(-(-read.tokens // count) + FRAME, read.cached // count), count)
        if count == 1 or not self.again:
            return first
        return first + self.read_s(Read.of(min(MOST_AGAIN, AGAIN_SHARE * tokens) + FRAME))

    def step_s(self, rows: float, context: float, tokens: int = 1) -> float:
        """Seconds of a decode step of `rows` requests of `context` tokens, with `tokens` tokens each."""
        model, read = self.model, Read(tokens, max(0, round(context)))
        linear = rows * (model.read.linear_flops(read) + tokens * 2 * model.head)
        attention = rows * model.read.attention_flops(read)
        return self._seconds(
            linear, model.touched(rows * tokens), attention, rows * self.kv_bytes(context), rows * tokens, 1
        )

    def _seconds(self, linear: float, weights: float, attention: float, kv: float, tokens: float, steps: int) -> float:
        """linear, attention: operations. weights: parameters that are read. kv: bytes of each rank that are read."""
        machine, ranks = self.machine, self.ranks
        products = roofline(linear / ranks, weights * self.weight_bits / 8 / ranks, machine.linear, machine.bandwidth)
        pairs = roofline(attention / ranks, kv, machine.attention, machine.bandwidth)
        return products + pairs + self._reduce_s(tokens, steps) + machine.token_s * tokens + machine.step_s * steps

    def _reduce_s(self, tokens: float, steps: int) -> float:
        """Two all-reduces in each layer add up the ranks' parts (Megatron-LM, arXiv 1909.08053)."""
        if self.ranks == 1:
            return 0.0
        each = all_reduce(tokens * self.model.hidden * ACTIVATION, self.ranks, self.machine.link)
        return 2 * self.model.layers * (each + steps * self.machine.reduce_s)

    def memory(self, gpu: Gpu, tokens: float, *, rows: int, drafts: int = 0, captures: bool = False) -> Memory | None:
        """The memory of each GPU for prompts with answers of `tokens` tokens; None if not even one fits.

        rows: requests that run at a time (`max_num_seqs`). drafts: K of a target that verifies remote drafts, whose
        distributions take rows * K * vocabulary numbers in float32. captures: whether it is a speculator, which keeps
        queries.
        """
        weights = (self.model.size.parameters or 0) * self.weight_bits / 8 / self.ranks
        buffers = rows * drafts * self.model.vocabulary * 4.0
        if captures:
            buffers += (rows + max(CAPTURED_ROWS, rows)) * self.model.queries * ACTIVATION / self.ranks
        left = USABLE * gpu.memory - weights - WORKING_GIB * GIB - buffers
        sessions = int(left / self.kv_bytes(tokens)) if left > 0 else 0
        if not sessions:
            return None
        return Memory(weights / GIB, WORKING_GIB, buffers / GIB, left / GIB, sessions)
