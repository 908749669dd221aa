"""The search for heads, with a reader whose heads are known: two find the evidence, the others do not."""

import dataclasses

import numpy as np
import pytest
import torch

from evals.heads import choose
from evals.heads.prompts import TASKS, make_prompts
from evals.heads.search import SearchSettings, search
from kv_transfer.spans import mask_of
from speculator_service.engine import Scores
from speculator_service.scoring.heads import Head, HeadProfile, known, load
from tests.unit.evals.conftest import REAL

NAMES = [(layer, head) for layer in range(4) for head in range(8)]
RIGHT = {(1, 2), (3, 7)}


class KnownReader:
    """`right` heads put half of their mass on the evidence, in the rows of the question only; all else is noise.

    by_turns: each of the two does so in half of the prompts, so that both are needed.
    """

    def __init__(self, prompts, right=RIGHT, by_turns=True):
        self._evidence = {tuple(prompt.rendered.token_ids): prompt.evidence for prompt in prompts}
        self._right, self._by_turns = right, by_turns

    async def head_masses(self, request_id, token_ids, question):
        rng = np.random.default_rng(int(token_ids.sum()))
        masses = rng.dirichlet(np.full(token_ids.size, 0.05), (2, len(NAMES))).astype(np.float32)
        evidence = mask_of(self._evidence[tuple(token_ids)], token_ids.size)
        right = sorted(self._right)
        if right and self._by_turns:
            right = [right[int(token_ids.sum()) % len(right)]]
        for place, name in enumerate(NAMES):
            if name in right:
                masses[0, place] = 0.5 * masses[0, place] + 0.5 * evidence / evidence.sum()
        return NAMES, torch.from_numpy(masses)

    async def score(self, request):
        return Scores(torch.rand(request.token_ids.size, generator=torch.Generator().manual_seed(1)), [])


@pytest.fixture(scope="module")
def prompts(tokenizer):
    return list(make_prompts(tokenizer, REAL, 2, seed=5))


async def test_the_heads_that_find_the_evidence_are_found(prompts):
    told = []
    chosen, made = await search(KnownReader(prompts), prompts, lambda what, done: told.append(done))
    assert {(head.layer, head.head) for head in chosen.heads[:2]} == RIGHT
    assert len(chosen.heads) == choose.COUNTS[0]
    assert chosen.question > chosen.last
    assert made["prompts"] == 2 * len(TASKS)
    assert sum(made["all_evidence_kept"]) > sum(made["all_evidence_kept_by_attention"])
    assert told == sorted(told)


async def test_of_heads_that_keep_as_much_the_lower_ones_are_chosen(prompts):
    chosen, _ = await search(KnownReader(prompts, {(0, 3), (1, 2), (3, 7)}, by_turns=False), prompts)
    assert {(head.layer, head.head) for head in chosen.heads[:2]} == {(0, 3), (1, 2)}
    assert max(head.layer for head in chosen.heads) < 2


async def test_control_without_a_head_that_finds_it_little_is_kept(prompts):
    _, right = await search(KnownReader(prompts), prompts)
    _, none = await search(KnownReader(prompts, right=set()), prompts)
    assert sum(none["all_evidence_kept"]) < sum(right["all_evidence_kept"])


async def test_control_other_heads_keep_less_evidence(prompts):
    reader = KnownReader(prompts)
    chosen, _ = await search(reader, prompts)
    wrong = [name for name in NAMES if name not in RIGHT]
    others = [Head(layer=layer, head=head) for layer, head in wrong[: len(chosen.heads)]]
    kept = []
    for heads in (chosen.heads, others):
        shares = []
        for prompt in prompts:
            masses = (await reader.head_masses("", prompt.rendered.token_ids, None))[1].numpy()
            candidate = dataclasses.replace(chosen, heads=tuple(heads))
            scores = choose.importance(candidate, NAMES, choose.Reading(prompt, masses))
            shares.append(choose.kept(prompt, scores))
        kept.append(choose.all_kept(shares))
    assert kept[1] < kept[0]


@pytest.mark.parametrize("output", [None, "own.json"])
def test_the_command_saves_the_profile_where_engines_look_or_where_it_is_told(
    skim, tmp_path, monkeypatch, prompts, output
):
    from evals.heads import search as module
    from tests.unit.conftest import MODELS

    def run(settings, report):
        assert settings == SearchSettings(str(MODELS / "speculator"), 600, 2, 7, {"dtype": "float32"})
        made = {
            "prompts": 14,
            "keep_rates": [0.1],
            "all_evidence_kept": [9],
            "all_evidence_kept_by_attention": [3],
        }
        heads = (Head(layer=1, head=2, weight=0.5),)
        return HeadProfile(model="owner/some", fingerprint="f", question=1.0, last=0.0, heads=heads, made=made)

    monkeypatch.setattr(module, "run", run)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    flags = ("--prompt-tokens", "600", "--prompts", "2", "--seed", 7, "--speculator-options", '{"dtype": "float32"}')
    ran = skim("heads", MODELS / "speculator", *flags, *(["-o", output] if output else []))
    assert ran.code == 0, ran.err
    profile = load(tmp_path / output) if output else known("f")
    assert profile.heads == (Head(layer=1, head=2, weight=0.5),)
    assert (known("f") is None) == (output is not None)
    assert "(1, 2) 0.5" in ran.out
