"""The search for retrieval heads at the start, with an engine of which it is known what each head looks at."""

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.mock_engines.speculator import MockSpeculator
from skim_common.errors import ModelError
from skim_common.models.info import inspect_model
from speculator_service.engine import Scores
from speculator_service.model import model_fingerprint
from speculator_service.scoring.heads import Head, HeadProfile, head_weights, load, row_weights, save, saved_file
from speculator_service.start import find_heads as module
from speculator_service.start.find_heads import COUNT, ensure_heads, find_heads, head_prompts
from speculator_service.start.probe import needle_prompts
from tests.unit.conftest import MODELS

MODEL = str(MODELS / "speculator")
LAYERS, HEADS = 10, 4
NAMES = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]
RIGHT = {(1, 2): 0.5, (7, 3): 0.4}
"""Heads with their mass on the evidence, by (layer, head)."""


class KnownEngine(MockSpeculator):
    """Each of the `right` heads puts its mass on the evidence of every prompt; all else is noise.

    seldom: heads that do so in one prompt of six. attends: the attention of all heads finds the evidence.
    """

    def __init__(self, right=RIGHT, seldom=None, attends=True, **options):
        super().__init__(MODEL, **options)
        self._right, self._seldom, self._attends, self.read = right, seldom or {}, attends, []
        prompts = [*head_prompts(MODEL), *needle_prompts(MODEL)]
        self._needles = {prompt.token_ids.tobytes(): prompt.needle for prompt in prompts}
        self.profile = None

    def use_heads(self, profile):
        self.profile, self.info = profile, replace(self.info, has_head_profile=profile is not None)

    async def head_masses(self, request_id, token_ids, question):
        self.read.append(request_id)
        rng = np.random.default_rng(int(token_ids.sum()))
        masses = rng.dirichlet(np.full(token_ids.size, 0.05), (2, len(NAMES))).astype(np.float32)
        start, end = self._needles[token_ids.tobytes()]
        often = self._right | (self._seldom if len(self.read) % 6 == 1 else {})
        for name, mass in often.items():
            row = masses[:, NAMES.index(name)]
            row *= 1 - mass
            row[:, start:end] += mass / (end - start)
        return NAMES, torch.from_numpy(masses)

    async def score(self, request):
        if request.options.scoring != "heads":
            scores = await super().score(request)
            start, end = self._needles[request.token_ids.tobytes()]
            scores.importance[start:end] *= 2 if self._attends else 0
            return scores
        masses = (await self.head_masses(request.request_id, request.token_ids, None))[1]
        places = [NAMES.index((head.layer, head.head)) for head in self.profile.heads]
        by_head = torch.einsum("r,rhm->hm", row_weights(self.profile.question, self.profile.last, 1), masses[:, places])
        weights = head_weights([head.weight for head in self.profile.heads])
        return Scores((weights @ by_head).numpy(), [])


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def best(profile, count=2):
    return [(head.layer, head.head) for head in profile.heads[:count]]


async def test_the_heads_that_find_the_evidence_score_from_now_on():
    told = []
    profile = await find_heads(engine := KnownEngine(), MODEL, lambda done, of: told.append((done, of)))
    assert engine.profile is profile
    assert engine.info.has_head_profile
    assert best(profile) == [(1, 2), (7, 3)]
    assert len(profile.heads) == COUNT
    assert profile.heads[0].weight > profile.heads[1].weight > 5 * profile.heads[2].weight
    profile.check(model_fingerprint(inspect_model(MODEL, engine="vllm")), LAYERS, HEADS)
    assert told == [(number, 24) for number in range(24)]


async def test_heads_of_the_highest_layers_are_left_out():
    profile = await find_heads(KnownEngine({**RIGHT, (8, 0): 0.9, (9, 1): 0.9}), MODEL)
    assert best(profile) == [(1, 2), (7, 3)]
    assert max(head.layer for head in profile.heads) == 7


async def test_a_head_that_seldom_looks_counts_less_than_one_that_always_looks_a_little():
    profile = await find_heads(KnownEngine({**RIGHT, (2, 0): 0.1}, seldom={(3, 3): 0.7}), MODEL)
    assert best(profile, 3)[2] == (2, 0)


async def test_control_heads_that_find_nothing_are_no_profile():
    assert await find_heads(engine := KnownEngine({}), MODEL) is None
    assert engine.profile is None
    assert not engine.info.has_head_profile


async def test_control_evidence_elsewhere_finds_no_heads(monkeypatch):
    """The needle of each prompt is said to be where its neighbour is."""

    def beside(model):
        return [
            replace(prompt, needle=(prompt.needle[1], 2 * prompt.needle[1] - prompt.needle[0]))
            for prompt in head_prompts(model)
        ]

    monkeypatch.setattr(module, "head_prompts", beside)
    assert await find_heads(KnownEngine(), MODEL) is None


async def test_an_engine_too_short_for_the_prompts_has_no_profile():
    assert await find_heads(engine := KnownEngine(max_model_len=256), MODEL) is None
    assert engine.read == []


async def test_what_was_found_is_saved_and_a_model_with_a_profile_is_not_searched():
    await ensure_heads(engine := KnownEngine(), MODEL)
    file = saved_file(model_fingerprint(inspect_model(MODEL, engine="vllm")))
    assert load(file) == engine.profile
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    read = len(engine.read)
    await ensure_heads(engine, MODEL)
    assert len(engine.read) == read


async def test_a_folder_that_cannot_be_written_stops_no_start(tmp_path, caplog):
    (tmp_path / "skim").write_text("a file in the way")
    await ensure_heads(engine := KnownEngine(), MODEL)
    assert engine.info.has_head_profile
    assert "is not saved: cannot write" in caplog.text


async def test_a_user_without_a_home_can_start(monkeypatch, caplog):
    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    await ensure_heads(engine := KnownEngine(), MODEL)
    assert engine.info.has_head_profile
    assert "is not saved: this user has no home folder" in caplog.text


async def test_without_good_heads_nothing_is_saved_and_the_log_says_it(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        await ensure_heads(engine := KnownEngine({}), MODEL)
    assert len(engine.read) >= 24
    assert "reads every prompt as a whole" in caplog.text
    assert list(tmp_path.iterdir()) == []


async def test_an_engine_that_shows_no_head_is_not_searched(caplog):
    with caplog.at_level(logging.INFO):
        await ensure_heads(engine := MockSpeculator(MODEL), MODEL)
    assert not engine.info.has_head_profile
    assert caplog.messages == []


async def test_a_model_whose_attention_finds_nothing_is_not_searched(caplog):
    engine = KnownEngine(attends=False)
    with caplog.at_level(logging.INFO):
        await ensure_heads(engine, MODEL)
    assert engine.read == []
    assert not engine.info.has_head_profile
    assert "reads every prompt as a whole" in caplog.text


def test_saving_leaves_no_half_written_file(tmp_path, monkeypatch):
    profile = HeadProfile(model="m", fingerprint="f", question=1.0, last=0.0, heads=(Head(layer=0, head=0),))
    save(profile, tmp_path / "heads.json")
    monkeypatch.setattr("os.replace", lambda *_: pytest.fail("interrupted"))
    with pytest.raises(pytest.fail.Exception):
        save(profile.model_copy(update={"model": "other"}), tmp_path / "heads.json")
    assert load(tmp_path / "heads.json") == profile


async def test_a_model_that_cannot_be_asked_in_its_tokens_starts_without_heads(monkeypatch, caplog):
    async def fails(engine, model):
        raise ModelError("no tokenizer")

    monkeypatch.setattr(module, "find_failure", fails)
    with caplog.at_level(logging.INFO):
        await ensure_heads(engine := KnownEngine(), MODEL)
    assert not engine.info.has_head_profile
    assert "reads every prompt as a whole" in caplog.text
