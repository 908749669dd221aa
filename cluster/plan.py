"""How many GPUs a deployment needs and how soon its first token comes: published formulas over the models' configs.

Errors and what is left out: docs/plan.md. "Measured" is fitted to the engine-alone times of
benchmarks/results/gpu-ttft.json, one H200, by `benchmarks.report.planned`; for other GPUs it is assumed.
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from kv_transfer.options import SelectionOptions
from kv_transfer.windows import AGAIN_SHARE, MOST_AGAIN, WHOLE
from skim_common.errors import ModelError, SkimError
from skim_common.models.costs import LINEAR as UNKNOWN_COST
from skim_common.models.costs import CacheCost, Read, ReadCost, cache_cost, expert_count, kv_head_count, read_cost
from skim_common.models.info import position_count

GIB = 2**30
WORKING_GIB = 4.0
"""Working memory per model: CUDA's context and graphs, activations and logits of a step. Assumed."""
USABLE = 0.94
"""Share of a GPU's memory that may be used."""

LINEAR, ATTENTION = 0.74, 0.63
"""Shares of the peak that a prefill reaches in its matrix products and in its attention. Measured."""
TOKEN_S = 3.6e-6
"""Seconds of the host for each token that an engine reads. Measured."""
BANDWIDTH = 0.8
"""Share of the memory bandwidth, and of the link's, that an engine reaches. Assumed."""
STEP_S, REDUCE_S = 2e-3, 10e-6
"""Seconds of an engine step besides the GPU's work, and of an all-reduce without data. Assumed."""
SKIM_S = 0.036
"""Seconds of a speculative request besides both engines: the median of queue and selection in gpu-ttft.json."""

CHUNK, MAX_ROWS = 8192, 256
"""Of vLLM on most GPUs: `max_num_batched_tokens`, the tokens of a prefill step, and `max_num_seqs`."""
ACTIVATION_BYTES = 2
LOOK_AHEAD, WINDOW = SelectionOptions().look_ahead, SelectionOptions().window_tokens
FRAME = 64
"""Tokens of the question and the template in each window. Assumed."""
RANKS = (1, 2, 4, 8)
"""Tensor-parallel sizes that are tried: one machine's."""
MAX_BUSY = 0.8
"""The largest share of its time that a replica may work."""
MAX_PROMPT = 2**20
KEEP_RATE = 0.3
"""What `keep_rate: auto` kept of prompts of 16,384 tokens: Qwen2.5-Coder 0.5B for 1.5B (docs/plan.md)."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What one rank of an engine reaches. linear, attention: operations per second. bandwidth, link: bytes per second.

    token_s, step_s, reduce_s: seconds per token that is read, per engine step, and per all-reduce without data. skim_s:
    seconds of a speculative request besides both engines. memory: bytes.
    """

    linear: float
    attention: float
    bandwidth: float
    link: float = float("inf")
    token_s: float = 0.0
    step_s: float = 0.0
    reduce_s: float = 0.0
    skim_s: float = 0.0
    memory: float = 0.0
    name: str = ""


def _gpu(name: str, flops: float, bandwidth: float, memory: float, link: float) -> Machine:
    """flops: dense bfloat16 operations per second. link: of one GPU to the others of its machine."""
    rates = LINEAR * flops, ATTENTION * flops, BANDWIDTH * bandwidth, BANDWIDTH * link
    return Machine(*rates, TOKEN_S, STEP_S, REDUCE_S, SKIM_S, memory, name)


# NVIDIA's data sheets. The peaks there are with sparsity, which doubles them. L40S: PCIe 4.0 x16; the others: NVLink.
GPUS = {
    "a100": _gpu("A100 SXM 80 GB", 312e12, 2.039e12, 80e9, 300e9),
    "l40s": _gpu("L40S 48 GB", 362e12, 0.864e12, 48e9, 32e9),
    "h100": _gpu("H100 SXM 80 GB", 989e12, 3.35e12, 80e9, 450e9),
    "h200": _gpu("H200 SXM 141 GB", 989e12, 4.8e12, 141e9, 450e9),
    "b200": _gpu("B200 180 GB", 2250e12, 7.7e12, 180e9, 900e9),
}


def gpu_named(name: str) -> Machine:
    """The GPU of this name. Raises SkimError if the table does not have it."""
    if name.lower() not in GPUS:
        raise SkimError(f"--gpu {name}: the plan knows {', '.join(GPUS)}")
    return GPUS[name.lower()]


def mean_wait(busy: float, service: float) -> float:
    """Seconds that a prompt waits for a server that takes `service` seconds for each and works a share `busy` of the
    time, in [0, 1): Pollaczek and Khinchine, for Poisson arrivals and equal prompts (M/D/1).
    """
    return busy * service / (2 * (1 - busy))


@dataclass(frozen=True, slots=True)
class Model:
    """A model, as far as the plan needs it. positions: the longest prompt with its answer. text: transformers' config.

    parameters: without norms. head: numbers of the output head. idle: parameters of the routed experts that do not
    compute a token. chosen: the share of the experts that do.
    """

    name: str
    positions: int
    text: Any
    parameters: float
    read: ReadCost
    cache: CacheCost
    head: int
    idle: float
    chosen: float

    @classmethod
    def of(cls, name: str, text: Any) -> "Model":
        """The text model of a transformers config. Raises ModelError if its shape is not one that the plan knows."""
        cost, experts = read_cost(text), expert_count(text)
        if cost is UNKNOWN_COST:
            raise ModelError(f"model {name}: its config has no usual shape, so its cost cannot be planned")
        every = copy(text)
        every.num_experts_per_tok = experts
        idle = (read_cost(every).linear - cost.linear) / 2
        head = text.vocab_size * text.hidden_size
        parameters = cost.linear / 2 + idle + head * (1 if getattr(text, "tie_word_embeddings", False) else 2)
        chosen = text.num_experts_per_tok / experts if experts else 1.0
        return cls(name, position_count(text), text, parameters, cost, cache_cost(text), head, idle, chosen)

    def touched(self, tokens: float) -> float:
        """The parameters that a step of `tokens` tokens reads: each token chooses its experts independently."""
        unread: float = (1 - self.chosen) ** max(tokens - 1, 0.0)  # of the experts that one token leaves idle
        return self.read.linear / 2 + self.head + (1 - unread) * self.idle


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
        return self.model.cache.numbers(tokens) * self.kv_bits / 8 / min(self.ranks, kv_head_count(self.model.text))

    @property
    def weight_bytes(self) -> float:
        """Of each rank."""
        return self.model.parameters * self.weight_bits / 8 / self.ranks

    @property
    def kv_room(self) -> float:
        """Bytes of each rank that are left for KV; 0 if the weights do not fit."""
        return max(0.0, USABLE * self.machine.memory - self.weight_bytes - WORKING_GIB * GIB)

    def read_s(self, read: Read, prompts: int = 1) -> float:
        """Seconds to the first tokens of equal prompts that are read together."""
        tokens = prompts * read.tokens
        steps = -(-tokens // self.chunk)
        linear = prompts * (self.model.read.linear_flops(read) + 2 * self.model.head)
        weights = steps * self.model.touched(min(tokens, self.chunk))
        attention = prompts * self.model.read.attention_flops(read)
        kv = prompts * self.kv_bytes(read.cached + read.tokens)
        return self._seconds(linear, weights, attention, kv, tokens, steps)

    def select_s(self, read: Read) -> float:
        """Seconds in which a speculator reads and scores a prompt: all windows together and then the second read, which
        is never cached; or the prompt as a whole, and the look-ahead after it.
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
        weights, kv = model.touched(rows * tokens), rows * self.kv_bytes(context)
        return self._seconds(linear, weights, attention, kv, rows * tokens, 1)

    def _seconds(self, linear: float, weights: float, attention: float, kv: float, tokens: float, steps: int) -> float:
        """linear, attention: operations. weights: parameters that are read. kv: bytes of each rank that are read.

        A kernel computes and reads memory at the same time (roofline: Williams et al., CACM 52(4), 2009). Two
        all-reduces in each layer add up the ranks' parts (Megatron-LM, arXiv 1909.08053): in a ring, each rank sends
        2 * (ranks - 1) / ranks of its bytes (Patarasuk and Yuan, JPDC 69(2), 2009).
        """
        machine, text, ranks = self.machine, self.model.text, self.ranks
        weight_bytes = weights * self.weight_bits / 8 / ranks
        products = max(linear / ranks / machine.linear, weight_bytes / machine.bandwidth)
        pairs = max(attention / ranks / machine.attention, kv / machine.bandwidth)
        each = 2 * (ranks - 1) / ranks * tokens * text.hidden_size * ACTIVATION_BYTES / machine.link
        reduces = 2 * text.num_hidden_layers * (each + steps * machine.reduce_s) if ranks > 1 else 0.0
        return products + pairs + reduces + machine.token_s * tokens + machine.step_s * steps


def pool(
    engine: PlannedEngine, qps: float, prefill_s: Callable[[PlannedEngine, Read], float], tokens: int, answer: int = 0
) -> dict[str, float] | None:
    """The replicas that read `tokens` tokens of each of `qps` prompts per second and decode full batches.

    The fewest ranks that hold the weights and one prompt, and the fewest replicas that carry the load. None if no
    machine holds the model. prefill_s: read_s or select_s. wait_s: mean until a prompt starts. prefill_s, token_s: of
    one prompt alone. busy: share of its time that a replica works. weights_gib, kv_gib: of each GPU. sessions: prompts
    with their answers that a replica holds.
    """
    for ranks in RANKS:
        engine = replace(engine, ranks=ranks)
        sessions = int(engine.kv_room / engine.kv_bytes(tokens + answer))
        if sessions and engine.model.text.num_attention_heads % ranks == 0:
            break
    else:
        return None
    rows, context = min(sessions, MAX_ROWS), tokens + answer / 2
    prefill = prefill_s(engine, Read(tokens))
    work = qps * (prefill + answer * engine.step_s(rows, context) / rows)  # seconds of a replica in each second
    replicas = max(1, math.ceil(work / MAX_BUSY))
    return {
        "tensor_parallel": engine.ranks,
        "replicas": replicas,
        "wait_s": mean_wait(qps * prefill / replicas, prefill),
        "prefill_s": prefill,
        "token_s": engine.step_s(1, context),
        "busy": work / replicas,
        "weights_gib": engine.weight_bytes / GIB,
        "kv_gib": engine.kv_room / GIB,
        "sessions": sessions,
    }


def pays_from(target: PlannedEngine, speculator: PlannedEngine, keep_rate: float) -> int | None:
    """The prompt length from which one prompt alone has its first token sooner with Skim; None if at no length."""

    def pays(prompt: int) -> bool:
        reads = speculator.select_s(Read(prompt)) + target.read_s(Read.of(keep_rate * prompt))
        return target.machine.skim_s + reads < target.read_s(Read(prompt))

    lengths = range(256, MAX_PROMPT + 1, 256)
    first = bisect_left(lengths, True, key=pays)
    return lengths[first] if first < len(lengths) else None
