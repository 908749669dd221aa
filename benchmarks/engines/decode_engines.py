"""The engines of `skim bench decode`: one speculator and a target for each method of drafting, one core per pool.

The speculator compresses the prompts. Only decoding is timed, from the first token of an answer to its last.
"""

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig

from benchmarks.engines import documents
from benchmarks.engines.documents import Kind
from benchmarks.report.progress import Progress
from kv_transfer.drafts import DraftReply, DraftRequest
from kv_transfer.messages import KeptPrompt, SelectRequest
from kv_transfer.options import DecodeOptions, SelectionOptions
from skim.engines import EngineSettings, PairEngines
from skim_common.environment import CORES, with_environment
from skim_common.models.source import local_folder
from speculator_service.engine import create_engine as create_speculator
from target_service.engine import create_engine as create_target


@dataclass(frozen=True)
class Mode:
    """engine: the target engine that verifies. decode: options of each request; None asks for no drafting session."""

    engine: str
    decode: DecodeOptions | None


def modes(drafts: int) -> dict[str, Mode]:
    """The modes by name. All modes except `remote_adaptive` verify up to K drafts in every step.

    The remote drafts are over the whole prompt, but for those of `remote_kept`.
    """
    fixed = DecodeOptions(max_draft_tokens=drafts, adaptive=False, draft_context="full")
    return {
        "plain": Mode("plain", None),
        "remote": Mode("remote", fixed),
        "remote_kept": Mode("remote", fixed.model_copy(update={"draft_context": "kept"})),
        "remote_adaptive": Mode("remote", fixed.model_copy(update={"adaptive": True})),
        "draft_model": Mode("draft_model", None),
    }


MODES = tuple(modes(1))


@dataclass(frozen=True)
class DecodeSettings:
    """prompts: number per round and mode. batch: requests that run at the same time. drafts: K. rounds: measured
    rounds, after one warm-up round.

    prompt_tokens: prompt lengths, measured one after the other on the same engines. look_ahead: tokens that come with
    the selection and are the first drafts. modes: names in
    `MODES`. dtype: of all engines, float32 or bfloat16. documents: `documents.messages`.
    """

    target: str
    speculator: str
    prompts: int = 8
    batch: int = 1
    prompt_tokens: tuple[int, ...] = (2048,)
    answer_tokens: int = 64
    keep_rate: float = 0.2
    look_ahead: int = 8
    drafts: int = 4
    rounds: int = 3
    ignore_eos: bool = False
    modes: tuple[str, ...] = MODES
    dtype: str = "float32"
    documents: Kind = "demo"

    @property
    def engine_options(self) -> dict[str, Any]:
        """The options of all engines."""
        return {"enforce_eager": True, "dtype": self.dtype}


@dataclass
class _Answer:
    """When the first and the last token of an answer came (time.perf_counter), and the number of tokens."""

    first: float = 0.0
    last: float = 0.0
    tokens: int = 0


@dataclass
class DecodeEngines:
    """The speculator with its draft channel, a target for each method of drafting, and the times of drafting rounds."""

    settings: DecodeSettings
    speculator: PairEngines
    targets: dict[str, PairEngines]
    round_ms: list[float]

    @classmethod
    async def start(cls, settings: DecodeSettings, progress: Progress) -> "DecodeEngines":
        """Start the engines. Raises SkimError if one does not start."""
        cores = sorted(os.sched_getaffinity(0))
        first, last = cores[0], cores[-1]
        wanted = {modes(settings.drafts)[name].engine for name in settings.modes}
        progress(f"starting the speculator and {len(wanted)} targets", 0)
        round_ms: list[float] = []

        on_first = partial(_create_on_core, first, create_speculator)
        speculator = PairEngines(
            speculator=EngineSettings(settings.speculator, options=settings.engine_options, create=on_first)
        )
        handle = speculator.drafts.handle

        async def timed(request: DraftRequest) -> DraftReply:
            began = time.perf_counter()
            reply = await handle(request)
            if reply.drafts:
                round_ms.append(1e3 * (time.perf_counter() - began))
            return reply

        speculator.drafts.handle = timed  # type: ignore[method-assign]
        engines = cls(settings, speculator, {}, round_ms)
        try:
            for name, options in _target_options(settings).items():
                if name in wanted:
                    on_last = partial(_create_on_core, last, create_target)
                    target = EngineSettings(settings.target, options=options, create=on_last)
                    engines.targets[name] = PairEngines(target=target)
        except BaseException:
            await engines.close()
            raise
        return engines

    async def measure(self, mode: Mode, prompt_tokens: int, seed: int) -> dict[str, Any]:
        """Send one set of prompts through one mode, `batch` at a time."""
        target, settings = self.targets[mode.engine], self.settings
        prompts = [await self._compress(prompt_tokens, seed + i, mode) for i in range(settings.prompts)]
        before = await _decode_stats(target)
        self.round_ms.clear()
        seconds, tokens = 0.0, 0
        for start in range(0, len(prompts), settings.batch):
            batch = prompts[start : start + settings.batch]
            answers = await asyncio.gather(*(self._decode(target, prompt, mode) for prompt in batch))
            # The first token comes from the prefill; the others come from decoding.
            seconds += max(answer.last for answer in answers) - min(answer.first for answer in answers)
            tokens += sum(answer.tokens - 1 for answer in answers)
        return {
            "tokens": tokens,
            "tokens_per_second": tokens / seconds,
            "ms_per_token": 1e3 * seconds * settings.batch / tokens,
            "round_ms": list(self.round_ms),
            "kv_bytes": [self._session_bytes(prompt, mode) for prompt in prompts if mode.decode is not None],
            **_difference(before, await _decode_stats(target), settings.drafts),
        }

    def _session_bytes(self, prompt: KeptPrompt, mode: Mode) -> int:
        """Bytes of the keys and values of the prompt tokens that the drafter reads."""
        config = AutoConfig.from_pretrained(local_folder(self.settings.speculator, weights=False))
        head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        item = torch.finfo(getattr(torch, self.settings.dtype)).bits // 8
        per_token = 2 * config.num_hidden_layers * config.num_key_value_heads * head_size * item
        kept = mode.decode is not None and mode.decode.draft_context == "kept"
        return per_token * (int(prompt.token_ids.size) if kept else prompt.context_length)

    async def _compress(self, prompt_tokens: int, seed: int, mode: Mode) -> KeptPrompt:
        messages = documents.messages(self.settings.documents, prompt_tokens, seed, self.speculator.tokenizer)
        ids = self.speculator.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        options = SelectionOptions(keep_rate=self.settings.keep_rate, look_ahead=self.settings.look_ahead)
        name, prompt = self.speculator.name("select"), np.asarray(ids, np.int32)
        return (await self.speculator.select(SelectRequest(name, prompt, options, decode=mode.decode))).kept

    async def _decode(self, target: PairEngines, prompt: KeptPrompt, mode: Mode) -> "_Answer":
        settings, decode = self.settings, mode.decode
        sampling = {"temperature": 0.0, "ignore_eos": settings.ignore_eos, "max_tokens": settings.answer_tokens}
        if mode.engine == "draft_model":
            decode = DecodeOptions(method="draft_model", max_draft_tokens=settings.drafts, adaptive=False)
        answer = _Answer()
        async for output in target.generate(prompt, sampling, decode=decode):
            answer.last = time.perf_counter()
            answer.first = answer.first or answer.last
            answer.tokens += int(output.completions[0].token_ids.size)
        return answer

    async def close(self) -> None:
        """Stop all engines. The targets are first: gRPC prints a trace for a stream that its server ends."""
        for target in self.targets.values():
            await target.close()
        await self.speculator.close()


def _target_options(settings: DecodeSettings) -> dict[str, dict[str, Any]]:
    """The engine options of each target, by the names in `Mode.engine`."""
    # Room for one whole prompt. The model's longest prompt would need a large KV cache with many layers.
    room = {"max_model_len": max(settings.prompt_tokens) + settings.answer_tokens + settings.drafts}
    decode = {"max_draft_tokens": settings.drafts}
    drafting: dict[str, dict[str, Any]] = {
        "plain": {},
        "remote": {"decode": {**decode, "method": "remote"}, "draft_channel": {"deadline_s": 2.0}},
        "draft_model": {"decode": {**decode, "method": "draft_model"}, "draft_model": settings.speculator},
    }
    return {name: {**settings.engine_options, **room, **options} for name, options in drafting.items()}


async def _decode_stats(target: PairEngines) -> dict[str, Any]:
    """The counters of vLLM's speculation (`VllmTarget.decode_stats`)."""
    stats: dict[str, Any] = await target.target.decode_stats()  # type: ignore[attr-defined]
    return stats


def _difference(before: dict[str, Any], after: dict[str, Any], drafts: int) -> dict[str, Any]:
    """The increase of vLLM's speculation counters; zeros for an engine without speculation."""
    gained: dict[str, Any] = {
        name: after.get(name, 0) - before.get(name, 0) for name in ("rounds", "drafts", "accepted")
    }
    for name in ("drafts_per_position", "accepted_per_position"):
        none = [0] * drafts
        gained[name] = [a - b for a, b in zip(after.get(name, none), before.get(name, none), strict=True)]
    return gained


def _create_on_core(core: int, create: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Start an engine by `create` on this core alone."""
    usable = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        with with_environment({CORES: str(core)}):
            return create(*args, **kwargs)
    finally:
        os.sched_setaffinity(0, usable)
