"""The pair in vLLM: the project's own engines and hooks over folders without weights (`load_format=dummy`).

Both engines live on one device and share its memory. Acceptance is forced at the draft channel: the speculator really
drafts, and what it drafted is replaced by the target's own answer, as far as a seeded coin lets it, so that each step
costs what it would. What holds is counted by the target; where batch shapes change a near tie, it is less than asked.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.memory import device_memory, need, shares
from benchmarks.gpu.pair import Decoded, Timed
from benchmarks.gpu.presets import Preset, configs, make_folder
from benchmarks.gpu.torch_model import CHUNK
from kv_transfer.channel_server import DraftServer
from kv_transfer.drafts import Draft, DraftReply, DraftRequest, DraftRow
from kv_transfer.errors import SkimError
from kv_transfer.messages import (
    DecodeOptions,
    GenerateRequest,
    Int32Array,
    KeptPrompt,
    SelectionOptions,
    SelectRequest,
    SessionHandle,
)
from speculator_service.drafting.drafter import DraftService
from speculator_service.factory import create_engine as create_speculator
from speculator_service.service import SpeculatorService
from target_service.engine import TargetEngine
from target_service.factory import create_engine as create_target

_NOTHING = np.empty(0, np.int32)
_HOST = "127.0.0.1"


@dataclass
class Forced:
    """What is to be said for one session: its answer, and how often the next draft holds."""

    answer: list[int]
    acceptance: float
    coin: np.random.Generator
    instant: bool

    def drafts(self, row: DraftRow) -> Draft:
        """As many as the row asks for and the answer has; after the first that is wrong, all are."""
        start = row.position + row.tokens.size
        tokens = np.array(self.answer[start : start + row.max_drafts], np.int32)
        held = int(np.cumprod(self.coin.random(tokens.size) < self.acceptance).sum())
        tokens[held:] = np.where(tokens[held:] == 1, 2, 1)
        return Draft(row.session, start, tokens)


@dataclass(frozen=True)
class Plan:
    """What is started. kept: tokens that the target holds. read: tokens that the speculator holds.

    drafts: K of a target that verifies remote drafts, 0 for one that does not. stock: a further target without drafts.
    """

    preset: Preset
    device: str
    kept: int
    read: int
    drafts: int = 0
    stock: bool = False
    eager: bool = False

    def shares(self) -> list[float]:
        """Of the device's memory: the speculator's, then each target's. Raises SkimError if it does not fit."""
        target, speculator = configs(self.preset)
        small = {"working_gib": 1.0} if self.device == "cpu" else {}
        needs = [need("the speculator", speculator, self.read, **small), need("the target", target, self.kept, **small)]
        if self.stock:
            needs.append(need("the target without drafts", target, self.kept, **small))
        return shares(needs, *device_memory(self.device))


class VllmPair:
    """Made by `start`."""

    engine = "vllm"

    def __init__(self, speculator: Any, target: TargetEngine, plain: TargetEngine | None, device: str) -> None:
        self._speculator, self._target, self._plain, self._device = speculator, target, plain, device
        self.stock = plain is not None
        self._select = SpeculatorService(speculator)
        self._service = DraftService(speculator, mode="off")
        self._server = DraftServer(self._answer, _HOST)
        self._address = ""
        self._forced: dict[str, Forced] = {}
        self._names = (f"gpu-{i}" for i in count())

    @classmethod
    async def start(cls, plan: Plan, folder: Path, tell: Callable[[str], None]) -> "VllmPair":
        """Start the engines one after the other. folder: where the models' folders are made.

        Raises SkimError if the memory does not suffice, or an engine does not start.
        """
        parts = plan.shares()
        common = {"load_format": "dummy", "max_num_seqs": 8, "max_num_batched_tokens": CHUNK}
        common["enforce_eager"] = plan.eager or plan.device == "cpu"
        target, speculator = (
            make_folder(config, folder / name)
            for config, name in zip(configs(plan.preset), ("target", "speculator"), strict=True)
        )

        def options(share: float, tokens: int) -> dict[str, Any]:
            return {**common, "max_model_len": tokens} | (
                {"gpu_memory_utilization": share} if plan.device == "cuda" else {}
            )

        tell("starting the speculator")
        drafter = create_speculator("vllm", speculator, options=options(parts[0], plan.read))
        started: list[Any] = [drafter]
        try:
            tell("starting the target")
            more: dict[str, Any] = {}
            if plan.drafts:
                decode = {"method": "remote", "max_draft_tokens": plan.drafts}
                more = {"decode": decode, "draft_channel": {"deadline_s": 10.0}}
            verifier = create_target("vllm", target, options={**options(parts[1], plan.kept), **more})
            started.append(verifier)
            stock = None
            if plan.stock:
                tell("starting the target without drafts")
                stock = create_target("vllm", target, options=options(parts[2], plan.kept))
                started.append(stock)
            pair = cls(drafter, verifier, stock, plan.device)
            pair._address = f"{_HOST}:{await pair._server.start()}"
        except BaseException:
            for engine in started:
                engine.close()
            raise
        return pair

    async def dense(self, ids: Int32Array) -> float:
        return await self.read_kept(KeptPrompt.dense(ids))

    async def skim(self, ids: Int32Array, options: SelectionOptions) -> Timed:
        name = next(self._names)
        before = await self._scoring_ms()
        began = time.perf_counter()
        selection = await self._select.select(SelectRequest(name, ids, options, cache_salt=name))
        selected = time.perf_counter()
        prefill = await self.read_kept(selection.kept)
        total = 1e3 * (selected - began) + prefill
        scoring = await self._scoring_ms() - before
        parts = {name: selection.timings[name] for name in ("queue", "speculate", "select")}
        return Timed(total, selection.kept, {**parts, "scoring": scoring, "prefill": prefill})

    async def read(self, ids: Int32Array) -> float:
        """A draft of one token over a session of its own: a prefill and one sampled token, no queries, no scores."""
        name = next(self._names)
        began = time.perf_counter()
        kept = KeptPrompt.dense(ids)
        await self._speculator.open_session(name, kept)
        elapsed = 1e3 * (time.perf_counter() - began)
        await self._speculator.close_session(name)
        return elapsed

    async def read_kept(self, kept: KeptPrompt) -> float:
        began = time.perf_counter()
        await self._generate(self._target, kept, 1, DecodeOptions(method="none"))
        return 1e3 * (time.perf_counter() - began)

    async def plain(self, kept: KeptPrompt, tokens: int, *, stock: bool = False) -> Decoded:
        engine = self._plain if stock and self._plain else self._target
        return await self._generate(engine, kept, tokens, DecodeOptions(method="none"))

    async def drafted(
        self, ids: Int32Array, kept: KeptPrompt, answer: list[int], drafts: int, acceptance: float, *, instant: bool
    ) -> Decoded:
        session = next(self._names)
        self._forced[session] = Forced(answer, acceptance, np.random.default_rng(len(ids)), instant)
        if not instant:
            await self._open(session, ids)
        # Without the look-ahead tokens, which would be drafts that nobody forced.
        asking = replace(kept, look_ahead_tokens=_NOTHING, session=SessionHandle(self._address, session))
        options = DecodeOptions(max_draft_tokens=drafts, adaptive=False, draft_ahead="off")
        before = await self._target.decode_stats()  # type: ignore[attr-defined]
        decoded = await self._generate(self._target, asking, len(answer), options)
        after = await self._target.decode_stats()  # type: ignore[attr-defined]
        rounds, accepted = (int(after[name] - before.get(name, 0)) for name in ("rounds", "accepted"))
        if not rounds:
            raise SkimError(f"the target verified no drafts: {after.get('fallbacks')}; the draft channel does not work")
        return replace(decoded, verifications=rounds, accepted=accepted)

    async def draft_ms(self, ids: Int32Array, drafts: int) -> float:
        session = next(self._names)
        await self._open(session, ids)
        began = time.perf_counter()
        await self._speculator.draft(session, np.array([20], np.int32), drafts)
        elapsed = 1e3 * (time.perf_counter() - began)
        await self._speculator.close_session(session)
        return elapsed

    def memory(self) -> dict[str, Any]:
        """The engines' processes hold it, so the device is asked."""
        if self._device != "cuda":
            return {"device_used_bytes": None}
        total, free = device_memory("cuda")
        return {"device_used_bytes": total - free}

    def close(self) -> None:
        for engine in (self._speculator, self._target, *([self._plain] if self._plain else [])):
            engine.close()

    async def stop(self) -> None:
        """Stop the draft channel, then the engines."""
        await self._server.stop()
        await self._service.close()
        self.close()

    async def _open(self, session: str, ids: Int32Array) -> None:
        """Have the speculator read the prompt and keep it, as a selection does."""
        options = SelectionOptions(look_ahead=0, layers="last1")
        await self._speculator.score(session, ids, options, cache_salt=session, keep_session=True)
        self._service.adopt(session, _NOTHING, "off")

    async def _scoring_ms(self) -> float:
        return float((await self._speculator.worker_stats())[0]["scoring_ms"])

    async def _generate(self, engine: TargetEngine, kept: KeptPrompt, tokens: int, decode: DecodeOptions) -> Decoded:
        name = next(self._names)
        sampling = {"temperature": 0.0, "ignore_eos": True, "max_tokens": tokens, "detokenize": False}
        answer: list[int] = []
        first = last = 0.0
        at_first = 0
        async for output in engine.generate(GenerateRequest(name, kept, sampling, cache_salt=name, decode=decode)):
            last = time.perf_counter()
            answer += output.completions[0].token_ids.tolist()
            if not first:
                first, at_first = last, len(answer)
        return Decoded(answer, last - first, len(answer) - at_first)

    async def _answer(self, request: DraftRequest) -> DraftReply:
        """The draft channel: real drafting for those that are not instant, then what is forced in its place."""
        working = [row for row in request.rows if not self._forced[row.session].instant]
        await self._service.handle(replace(request, rows=working))
        return DraftReply(request.sequence, [self._forced[row.session].drafts(row) for row in request.rows])
