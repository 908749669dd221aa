"""The pair in vLLM: Skim's own engines and hooks over model folders without weights (`load_format=dummy`).

Both engines run on one device and share its memory. Acceptance is forced at the draft channel: the speculator really
drafts, so a step has its normal cost, and then its drafts are replaced by tokens of the target's own answer or by
wrong tokens, as a seeded random generator decides. The target counts the accepted drafts. They can be fewer than
forced, if another batch shape changes the target's choice between two almost equal tokens.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from benchmarks.gpu.memory import device_memory, need, shares
from benchmarks.gpu.pair import Decoded, Timed
from benchmarks.gpu.presets import Preset, configs, make_folder
from kv_transfer.arrays import Int32Array
from kv_transfer.drafts import Drafted, DraftReply, DraftRequest, DraftRow
from kv_transfer.layout import Frame, TextLayout
from kv_transfer.messages import KeptPrompt, SelectRequest, SessionHandle
from kv_transfer.options import DecodeOptions, SelectionOptions
from skim.engines import EngineSettings, PairEngines
from skim_common.errors import SkimError
from skim_common.models.info import inspect_model, text_config
from speculator_service.engine import ScoreRequest
from speculator_service.model import model_fingerprint
from speculator_service.scoring.heads import Head, HeadProfile, save

CHUNK = 8192
"""Tokens of a prefill step: vLLM's default on a large GPU."""
_NOTHING = np.empty(0, np.int32)
QUESTION = UNIT = 32
"""Tokens of the question at the end of a prompt, and of each unit of its text."""
FRAME = Frame(*(np.arange(20, 20 + size, dtype=np.int32) for size in (5, 1, 5)))
"""What stands around a window: as many tokens as in common chat templates."""


@dataclass
class Forced:
    """The forced drafts of one session. answer: the target's own. acceptance: probability that the next draft is right.

    instant: the speculator does not draft.
    """

    answer: list[int]
    acceptance: float
    coin: np.random.Generator
    instant: bool

    def drafts(self, row: DraftRow) -> Drafted:
        """The next drafts: as many as the row asks for and the answer has. After a wrong draft, all are wrong."""
        start = row.position + row.tokens.size
        tokens = np.array(self.answer[start : start + row.max_drafts], np.int32)
        held = int(np.cumprod(self.coin.random(tokens.size) < self.acceptance).sum())
        tokens[held:] = np.where(tokens[held:] == 1, 2, 1)
        return Drafted(tokens)


@dataclass(frozen=True)
class Plan:
    """The engines to start. kept: tokens that the target holds. read: tokens that the speculator holds.

    drafts: K of a target that verifies remote drafts, or 0. stock: also start a target without drafts.
    """

    preset: Preset
    device: str
    kept: int
    read: int
    drafts: int = 0
    stock: bool = False
    eager: bool = False

    def shares(self) -> list[float]:
        """Shares of the device's memory: the speculator's, then each target's. Raises SkimError if they do not fit."""
        target, speculator = configs(self.preset)
        small = {"working_gib": 1.0} if self.device == "cpu" else {}
        needs = [need("the speculator", speculator, self.read, **small), need("the target", target, self.kept, **small)]
        if self.stock:
            needs.append(need("the target without drafts", target, self.kept, **small))
        return shares(needs, *device_memory(self.device))

    def engine_options(self, share: float, tokens: int) -> dict[str, Any]:
        """vLLM's options for an engine with `share` of the device's memory that holds `tokens`."""
        options = {"load_format": "dummy", "max_num_seqs": 8, "max_num_batched_tokens": CHUNK, "max_model_len": tokens}
        memory = {"gpu_memory_utilization": share} if self.device == "cuda" else {}
        return {**options, "enforce_eager": self.eager or self.device == "cpu", **memory}


class VllmPair:
    """Both engines in vLLM, and optionally a second target without drafts. Made by `start`."""

    def __init__(self, device: str, stock: bool) -> None:
        self._device, self.stock = device, stock
        self._forced: dict[str, Forced] = {}
        self._pair: PairEngines
        self._plain: PairEngines | None = None

    @classmethod
    async def start(cls, plan: Plan, folder: Path, print_line: Callable[[str], None]) -> "VllmPair":
        """Start the engines one after the other. folder: where the models' folders are made.

        Raises SkimError if the memory does not suffice, or an engine does not start.
        """
        parts = plan.shares()
        target, speculator = (
            make_folder(config, folder / name)
            for config, name in zip(configs(plan.preset), ("target", "speculator"), strict=True)
        )
        drafting: dict[str, Any] = {}
        if plan.drafts:
            decode = {"method": "remote", "max_draft_tokens": plan.drafts}
            drafting = {"decode": decode, "draft_channel": {"deadline_s": 10.0}}
        made = cls(plan.device, plan.stock)
        print_line("starting the speculator and the target")
        heads = {"head_profile": make_profile(speculator)}
        made._pair = PairEngines(
            speculator=EngineSettings(speculator, options={**plan.engine_options(parts[0], plan.read), **heads}),
            target=EngineSettings(target, options={**plan.engine_options(parts[1], plan.kept), **drafting}),
        )
        drafts = made._pair.drafts
        drafts.handle = partial(made._answer, drafts.handle)  # type: ignore[method-assign]
        try:
            if plan.stock:
                print_line("starting the target without drafts")
                options = plan.engine_options(parts[2], plan.kept)
                made._plain = PairEngines(target=EngineSettings(target, options=options))
        except BaseException:
            await made.stop()
            raise
        return made

    async def dense(self, ids: Int32Array) -> float:
        return await self.read_kept(KeptPrompt.dense(ids))

    async def skim(self, ids: Int32Array, options: SelectionOptions) -> Timed:
        name, salt = self._pair.name("select"), self._pair.name("gpu")
        request = SelectRequest(name, ids, options, _layout(ids), cache_salt=salt)
        began = time.perf_counter()
        selection = await self._pair.select(request)
        selected = time.perf_counter()
        prefill = await self.read_kept(selection.kept)
        total = 1e3 * (selected - began) + prefill
        parts = {name: selection.timings[name] for name in ("queue", "speculate", "select")}
        return Timed(total, selection.kept, {**parts, "prefill": prefill})

    async def read(self, ids: Int32Array, window: int | None = None) -> float:
        """Drafts one token in a new session: a prefill and one sampled token, without queries and scores. With windows
        one session for each.
        """
        size = window or ids.size
        began = time.perf_counter()
        await asyncio.gather(*(self._read(ids[start : start + size]) for start in range(0, ids.size, size)))
        return 1e3 * (time.perf_counter() - began)

    async def _read(self, ids: Int32Array) -> None:
        name = self._pair.name("gpu")
        await self._pair.speculator.open_session(name, KeptPrompt.dense(ids))
        await self._pair.speculator.close_session(name)

    async def read_kept(self, kept: KeptPrompt) -> float:
        began = time.perf_counter()
        await self._generate(self._pair, kept, 1, DecodeOptions(method="none"))
        return 1e3 * (time.perf_counter() - began)

    async def plain(self, kept: KeptPrompt, tokens: int, *, stock: bool = False) -> Decoded:
        pair = self._plain if stock and self._plain else self._pair
        return await self._generate(pair, kept, tokens, DecodeOptions(method="none"))

    async def drafted(
        self, ids: Int32Array, kept: KeptPrompt, answer: list[int], drafts: int, acceptance: float, *, instant: bool
    ) -> Decoded:
        session = self._pair.name("gpu")
        self._forced[session] = Forced(answer, acceptance, np.random.default_rng(len(ids)), instant)
        if not instant:
            await self._open(session, ids)
        # Without the look-ahead tokens: they would be drafts that are not forced.
        handle = SessionHandle(await self._pair.draft_address(), session)
        asking = replace(kept, look_ahead_tokens=_NOTHING, session=handle)
        options = DecodeOptions(max_draft_tokens=drafts, adaptive=False)
        before = await self._decode_stats()
        decoded = await self._generate(self._pair, asking, len(answer), options)
        after = await self._decode_stats()
        rounds, accepted = (int(after[name] - before.get(name, 0)) for name in ("rounds", "accepted"))
        if not rounds:
            raise SkimError(f"the target verified no drafts: {after.get('fallbacks')}; the draft channel does not work")
        return replace(decoded, verifications=rounds, accepted=accepted)

    async def draft_ms(self, ids: Int32Array, drafts: int) -> float:
        session, speculator = self._pair.name("gpu"), self._pair.speculator
        await self._open(session, ids)
        began = time.perf_counter()
        await speculator.draft(session, np.array([20], np.int32), drafts)
        elapsed = 1e3 * (time.perf_counter() - began)
        await speculator.close_session(session)
        return elapsed

    def memory(self) -> dict[str, Any]:
        """The used memory of the device. Other processes hold the engines, so torch in this process cannot count it."""
        if self._device != "cuda":
            return {"device_used_bytes": None}
        total, free = device_memory("cuda")
        return {"device_used_bytes": total - free}

    async def stop(self) -> None:
        """Stop the engines and the draft channel."""
        if self._plain is not None:
            await self._plain.close()
        await self._pair.close()

    async def _open(self, session: str, ids: Int32Array) -> None:
        """Have the speculator read the prompt and keep it as a session, as a selection does."""
        options = SelectionOptions(look_ahead=0, layers="last1")
        await self._pair.speculator.score(ScoreRequest(session, ids, options, cache_salt=session, keep_session=True))
        self._pair.drafts.adopt(session, _NOTHING)

    async def _decode_stats(self) -> dict[str, Any]:
        stats: dict[str, Any] = await self._pair.target.decode_stats()  # type: ignore[attr-defined]
        return stats

    async def _generate(self, pair: PairEngines, kept: KeptPrompt, tokens: int, decode: DecodeOptions) -> Decoded:
        sampling = {"temperature": 0.0, "ignore_eos": True, "max_tokens": tokens, "detokenize": False}
        answer: list[int] = []
        first = last = 0.0
        at_first = 0
        # The new name is also the cache salt, so nothing comes from the prefix cache.
        async for output in pair.generate(kept, sampling, decode=decode, cache_salt=self._pair.name("gpu")):
            last = time.perf_counter()
            answer += output.completions[0].token_ids.tolist()
            if not first:
                first, at_first = last, len(answer)
        return Decoded(answer, last - first, len(answer) - at_first)

    async def _answer(
        self, handle: Callable[[DraftRequest], Awaitable[DraftReply]], request: DraftRequest
    ) -> DraftReply:
        """Answer on the draft channel: draft for sessions that are not instant, then reply with the forced drafts."""
        working = [row for row in request.rows if not self._forced[row.session].instant]
        await handle(replace(request, rows=working))
        return DraftReply({row.session: self._forced[row.session].drafts(row) for row in request.rows})


def _layout(ids: Int32Array) -> TextLayout:
    """The layout of a prompt of these tokens with a question at its end."""
    question = np.array([(ids.size - QUESTION, ids.size)], np.int32)
    units = np.arange(0, ids.size, UNIT, dtype=np.int32)
    return TextLayout(units=units, questions=question, frame=FRAME)


def make_profile(folder: str) -> str:
    """Write a head profile for the model without weights in `folder`: eight heads in a layer at three fifths of its
    depth, where the retrieval heads of real models are. Returns the file.

    A norm of ones gives the model a fingerprint. vLLM does not read it.
    """
    info = text_config(folder)
    save_file({"model.norm.weight": torch.ones(info.hidden_size)}, Path(folder) / "model.safetensors")
    layer = 3 * info.num_hidden_layers // 5
    heads = tuple(Head(layer=layer, head=head) for head in range(min(8, info.num_attention_heads)))
    fingerprint = model_fingerprint(inspect_model(folder, engine="vllm"))
    path = Path(folder) / "heads.json"
    save(HeadProfile(model="random", fingerprint=fingerprint, question=1.0, last=0.0, heads=heads), path)
    return str(path)
