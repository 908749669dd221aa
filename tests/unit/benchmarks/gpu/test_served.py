"""Chats over HTTP on one GPU, without an engine: the deployment, and the table."""

import json

import pytest

from benchmarks.gpu import served
from benchmarks.gpu.systems import Systems

SYSTEMS = Systems("cuda", "/models/target", "/models/speculator", 4096, 6, (2048, 8192), random=True, decode="none")


def test_both_pools_share_one_gpu_and_have_the_options_of_the_stock_server():
    config = SYSTEMS.config()
    assert config.target.gpus_per_replica + config.speculator.gpus_per_replica <= 1
    options = config.target.engine_options
    assert options["kv_cache_memory_bytes"] == 3 * config.speculator.engine_options["kv_cache_memory_bytes"]
    assert options["load_format"] == config.speculator.engine_options["load_format"] == "dummy"
    assert options.keys() - {"enable_prompt_tokens_details"} == SYSTEMS.engine_options("target").keys()
    assert SYSTEMS.engine_options("target", 2048)["max_num_batched_tokens"] == 2048
    assert config.decode.method == "none"


def test_the_longest_chat_fits_with_the_tokens_of_another_tokenizer():
    settings = served.ServedSettings("t", "s", "cuda")
    assert len(settings.lengths) == 20
    assert (settings.lengths[0], settings.lengths[-1]) == (2048, 16384)
    assert settings.systems.longest > 1.25 * 16384 + settings.answer_tokens


def _row(chat, mode, tokens, first_ms, right=True, **more):
    return {
        "chat": chat, "mode": mode, "prompt_tokens": tokens, "first_ms": first_ms, "right": right, "ran": "", **more,
    }  # fmt: skip


def test_ratios_are_formed_within_a_chat(tmp_path):
    rows = []
    for chat, tokens in enumerate((2000, 5000, 6000, 12000)):
        rows.append(_row(chat, "stock", tokens, 2.0 * tokens, tokens_per_s=50.0))
        rows.append(_row(chat, "dense", tokens, 4.0 * tokens))
        rows.append(_row(chat, "speculative", tokens, 1.0 * tokens, right=chat != 2))
    found = served.parts(rows)
    assert [row["tokens"] for row in found[::3]] == [[2000, 2000], [5000, 6000], [12000, 12000], [2000, 12000]]
    whole = {row["mode"]: row for row in found[-3:]}
    assert whole["speculative"]["to_stock"] == {"median": 2.0, "lowest": 2.0, "highest": 2.0}
    assert whole["dense"]["to_stock"]["median"] == 0.5
    assert (whole["speculative"]["right"], whole["speculative"]["chats"]) == (3, 4)
    assert (whole["stock"]["tokens_per_s"], whole["dense"]["tokens_per_s"]) == (50.0, None)
    names = {"target": "t", "speculator": "s", "device": "cpu", "chats": 4}
    result = {"settings": names, "rows": rows, "machine": {"usable_cores": 1, "machine": "x86_64", "day": "1"}}
    columns, shown = served.table(json.loads(json.dumps(result)))
    assert {len(row) for row in shown} == {len(columns)}
    assert shown[-1][2] == "3 of 4"
    assert " on cpu: " in served.describe(result)
    served.plot(result, tmp_path / "served.png")
    assert (tmp_path / "served.png").stat().st_size > 1000


@pytest.mark.parametrize(("tokens", "ms", "speed"), [(11, 100.0, 100.0), (101, 500.0, 200.0)])
def test_the_first_token_does_not_count_as_decoded(tokens, ms, speed):
    assert served._speed(served.Timed(20.0, 20.0 + ms, tokens)) == pytest.approx(speed)
