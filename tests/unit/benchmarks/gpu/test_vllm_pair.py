"""The vLLM pair without an engine: forced drafts, memory plans and refusals."""

import numpy as np
import pytest

from benchmarks.gpu import engines, vllm_pair
from benchmarks.gpu.engines import device_named
from benchmarks.gpu.memory import GIB
from benchmarks.gpu.presets import MODELS, make_folder, preset
from benchmarks.gpu.vllm_pair import Forced, Plan
from kv_transfer.drafts import DraftReply, DraftRequest, DraftRow, check_answers
from skim_common.errors import SkimError
from skim_common.models.info import inspect_model
from speculator_service.scoring.heads import profile_of

ANSWER = list(range(100, 200))


def _row(position, tokens, most=4):
    return DraftRow("s", position, np.array(tokens, np.int32), most)


def _forced(acceptance):
    return Forced(ANSWER, acceptance, np.random.default_rng(0), False)


def test_all_or_none_of_the_drafts_hold():
    row = _row(7, ANSWER[7:10])
    assert _forced(1.0).drafts(row).tokens.tolist() == ANSWER[10:14]
    wrong = _forced(0.0).drafts(row)
    assert not set(wrong.tokens.tolist()) & set(ANSWER)
    assert wrong.tokens.size == 4
    check_answers(DraftReply({row.session: wrong}), DraftRequest([row]))


def test_drafts_hold_as_often_as_asked_and_none_after_one_that_does_not():
    forced, held = _forced(0.6), []
    for _ in range(4000):
        right = forced.drafts(_row(0, ANSWER[:1])).tokens == ANSWER[1:5]
        held.append(right.sum())
        assert right[: right.sum()].all()
    assert np.mean(held) == pytest.approx(0.6 + 0.6**2 + 0.6**3 + 0.6**4, abs=0.08)


def test_drafts_end_with_the_answer():
    assert _forced(1.0).drafts(_row(97, ANSWER[97:99])).tokens.tolist() == [199]


def _with_memory(monkeypatch, total):
    monkeypatch.setattr(vllm_pair, "device_memory", lambda device: (total * GIB, total * GIB))


def test_a_second_target_only_where_it_fits(monkeypatch):
    small, big = (Plan(preset(name), "cuda", 30000, 131584, 4, stock=True) for name in ("8b", "32b"))
    _with_memory(monkeypatch, 139)
    assert len(engines._plan(small).shares()) == 3
    assert not engines._plan(big).stock
    _with_memory(monkeypatch, 60)
    with pytest.raises(SkimError, match="choose shorter --lengths or a smaller --preset"):
        engines._plan(big)


def test_mistakes_on_the_command_line(monkeypatch):
    monkeypatch.setattr(engines.torch.cuda, "is_available", lambda: False)
    with pytest.raises(SkimError, match="--device cpu --preset toy"):
        device_named("auto")
    with pytest.raises(SkimError, match="no device 'tpu'"):
        device_named("tpu")


def test_a_model_without_weights_gets_heads_in_its_middle(tmp_path):
    folder = make_folder(MODELS["toy-small"], tmp_path)
    profile = profile_of(inspect_model(folder, engine="vllm"), vllm_pair.make_profile(folder))
    assert {(head.layer, head.head) for head in profile.heads} == {(1, head) for head in range(4)}
    layout = vllm_pair._layout(np.arange(100, dtype=np.int32))
    assert (layout.questions.tolist(), layout.units.tolist()) == ([[68, 100]], [0, 32, 64, 96])
