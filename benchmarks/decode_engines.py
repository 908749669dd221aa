"""The engines of `skim bench decode`: one speculator and a target for each way of drafting, one core to each pool.

Prompts are compressed by the speculator; only decoding is timed, from a request's first token to its last.
"""

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from transformers import AutoConfig, AutoTokenizer

from benchmarks.progress import Progress
from cluster.commands.demo_document import make_document
from kv_transfer.channel_server import DraftServer
from kv_transfer.drafts import DraftReply, DraftRequest
from kv_transfer.environment import CORES, with_environment
from kv_transfer.messages import DecodeOptions, GenerateRequest, KeptPrompt, SelectionOptions, SelectRequest
from speculator_service.drafting.drafter import DraftService
from speculator_service.engine import SpeculatorEngine
from speculator_service.factory import create_engine as create_speculator
from speculator_service.service import SpeculatorService
from target_service.factory import create_engine as create_target

_ENGINE = {"enforce_eager": True, "dtype": "float32"}


@dataclass(frozen=True)
class Mode:
    """engine: which target engine verifies. decode: what each request asks for; None asks no session."""

    engine: str
    decode: DecodeOptions | None


def modes(drafts: int) -> dict[str, Mode]:
    """The modes by name; all but `remote_adaptive` verify up to K drafts always."""
    fixed = DecodeOptions(max_draft_tokens=drafts, adaptive=False, draft_ahead="off")
    ahead = {name: fixed.model_copy(update={"draft_ahead": name}) for name in ("chain", "branches")}
    return {
        "plain": Mode("plain", None),
        "remote": Mode("remote", fixed),
        "remote_chain": Mode("remote", ahead["chain"]),
        "remote_branches": Mode("remote", ahead["branches"]),
        "remote_kept": Mode("remote", fixed.model_copy(update={"draft_context": "kept"})),
        "remote_adaptive": Mode("remote", ahead["chain"].model_copy(update={"adaptive": True})),
        "draft_model": Mode("draft_model", None),
    }


MODES = tuple(modes(1))


@dataclass(frozen=True)
class DecodeSettings:
    """prompts: per set. batch: requests at a time. drafts: K. rounds: sets per mode, after one that is not counted.

    prompt_tokens: each length is measured by itself, on the same engines. look_ahead: tokens that come with the
    selection, the first drafts. modes: names of `MODES`; `plain` is always measured. target_layers: pad the target to
    so many.
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
    target_layers: int | None = None
    modes: tuple[str, ...] = MODES


@dataclass
class _Answer:
    """When an answer's first and last token came, and how many there were."""

    first: float = 0.0
    last: float = 0.0
    tokens: int = 0


@dataclass
class Engines:
    settings: DecodeSettings
    speculator: SpeculatorEngine
    service: DraftService
    select: SpeculatorService
    server: DraftServer
    targets: dict[str, Any]
    tokenizer: Any
    round_ms: list[float]

    @classmethod
    async def start(cls, settings: DecodeSettings, progress: Progress) -> "Engines":
        cores = sorted(os.sched_getaffinity(0))
        first, last = cores[0], cores[-1]
        wanted = {"plain", *(modes(settings.drafts)[name].engine for name in settings.modes)}
        progress(f"starting the speculator and {len(wanted)} targets", 0)
        with _pinned(first):
            speculator = create_speculator("vllm", settings.speculator, options=_ENGINE)
        service = DraftService(speculator)
        round_ms: list[float] = []

        async def timed(request: DraftRequest) -> DraftReply:
            began = time.perf_counter()
            reply = await service.handle(request)
            if reply.drafts:
                round_ms.append(1e3 * (time.perf_counter() - began))
            return reply

        server = DraftServer(timed, "127.0.0.1")
        address = f"127.0.0.1:{await server.start()}"
        decode = {"max_draft_tokens": settings.drafts}
        options: dict[str, dict[str, Any]] = {
            "plain": {},
            "remote": {"decode": {**decode, "method": "remote"}, "draft_channel": {"deadline_s": 2.0}},
            "draft_model": {"decode": {**decode, "method": "draft_model"}, "draft_model": settings.speculator},
        }
        # Room for a whole prompt, not for the model's longest: with many layers its KV cache is large.
        room = {"max_model_len": max(settings.prompt_tokens) + settings.answer_tokens + settings.drafts}
        with _pinned(last):
            targets = {
                name: create_target("vllm", settings.target, options={**_ENGINE, **room, **more})
                for name, more in options.items()
                if name in wanted
            }
        select = SpeculatorService(speculator, address)
        tokenizer = AutoTokenizer.from_pretrained(settings.target)
        return cls(settings, speculator, service, select, server, targets, tokenizer, round_ms)

    async def measure(self, mode: Mode, prompt_tokens: int, seed: int) -> dict[str, Any]:
        """One set of prompts through one mode, `batch` at a time."""
        target, settings = self.targets[mode.engine], self.settings
        prompts = [await self._compress(prompt_tokens, seed + i, mode) for i in range(settings.prompts)]
        before, drafted = await target.decode_stats(), self.service.metrics()
        self.round_ms.clear()
        seconds, tokens = 0.0, 0
        for start in range(0, len(prompts), settings.batch):
            batch = prompts[start : start + settings.batch]
            names = (f"{seed}-{start}-{i}" for i in range(len(batch)))
            decodes = (self._decode(target, prompt, mode, name) for prompt, name in zip(batch, names, strict=True))
            answers = await asyncio.gather(*decodes)
            # The first token comes from the prefill; what follows is decoding.
            seconds += max(answer.last for answer in answers) - min(answer.first for answer in answers)
            tokens += sum(answer.tokens - 1 for answer in answers)
        return {
            "tokens": tokens,
            "tokens_per_second": tokens / seconds,
            "ms_per_token": 1e3 * seconds * settings.batch / tokens,
            "round_ms": list(self.round_ms),
            "kv_bytes": [self._session_bytes(prompt, mode) for prompt in prompts if mode.decode is not None],
            "ahead_hits": self.service.metrics()["ahead_hits"] - drafted["ahead_hits"],
            **_difference(before, await target.decode_stats(), settings.drafts),
        }

    def _session_bytes(self, prompt: KeptPrompt, mode: Mode) -> int:
        """Keys and values of the prompt tokens that the drafter reads, float32."""
        config = AutoConfig.from_pretrained(self.settings.speculator)
        per_token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 4
        kept = mode.decode is not None and mode.decode.draft_context == "kept"
        return per_token * (int(prompt.token_ids.size) if kept else prompt.context_length)

    async def _compress(self, prompt_tokens: int, seed: int, mode: Mode) -> KeptPrompt:
        document = make_document(prompt_tokens, seed)
        ids = self.tokenizer.apply_chat_template(document.messages, add_generation_prompt=True, return_dict=False)
        request = SelectRequest(
            f"{seed}-{time.monotonic_ns()}",
            np.asarray(ids, np.int32),
            SelectionOptions(keep_rate=self.settings.keep_rate, look_ahead=self.settings.look_ahead),
            decode=mode.decode,
        )
        kept = (await self.select.select(request)).kept
        if mode.decode is None:
            return replace(kept, session=None)
        assert kept.session is not None
        self.service.adopt(kept.session.id, kept.look_ahead_tokens, mode.decode.draft_ahead)
        return kept

    async def _decode(self, target: Any, prompt: KeptPrompt, mode: Mode, name: str) -> "_Answer":
        settings = self.settings
        sampling = {"temperature": 0.0, "ignore_eos": settings.ignore_eos, "max_tokens": settings.answer_tokens}
        request = GenerateRequest(f"{name}-{time.monotonic_ns()}", prompt, sampling)
        if mode.decode is not None:
            request = replace(request, decode=mode.decode)
        elif mode.engine != "plain":
            decode = DecodeOptions(method="draft_model", max_draft_tokens=self.settings.drafts, adaptive=False)
            request = replace(request, decode=decode)
        answer = _Answer()
        async for output in target.generate(request):
            answer.last = time.perf_counter()
            answer.first = answer.first or answer.last
            answer.tokens += int(output.completions[0].token_ids.size)
        return answer

    async def close(self) -> None:
        # First those who ask: gRPC prints a trace for a stream that its server ends.
        for target in self.targets.values():
            target.close()
        await self.server.stop()
        await self.service.close()
        self.speculator.close()


def _difference(before: dict[str, Any], after: dict[str, Any], drafts: int) -> dict[str, Any]:
    """What vLLM's speculation counters gained; zeros for an engine without speculation."""
    gained: dict[str, Any] = {
        name: after.get(name, 0) - before.get(name, 0) for name in ("rounds", "drafts", "accepted")
    }
    for name in ("drafts_per_position", "accepted_per_position"):
        none = [0] * drafts
        gained[name] = [a - b for a, b in zip(after.get(name, none), before.get(name, none), strict=True)]
    return gained


@contextmanager
def _pinned(core: int) -> Iterator[None]:
    """Engines that start inside run on this core alone."""
    usable = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        with with_environment({CORES: str(core)}):
            yield
    finally:
        os.sched_setaffinity(0, usable)
