"""Conversations over HTTP on one GPU, without an engine: the deployment and the table."""

from benchmarks.gpu import turns
from benchmarks.latency.turns_results import Answered, rows_of, totals_of

SETTINGS = turns.GpuTurnsSettings("toy", "owner/speculator@main", "cuda", lengths=(4096, 8192), kv_gib=6)


def test_both_pools_share_one_gpu():
    config = turns.skim_config(SETTINGS, "/models/target")
    assert config.target.gpus_per_replica + config.speculator.gpus_per_replica <= 1
    options = config.target.engine_options
    assert options["kv_cache_memory_bytes"] == 3 * config.speculator.engine_options["kv_cache_memory_bytes"]
    assert options["max_model_len"] > 8192
    assert (options["load_format"], config.speculator.engine_options.get("load_format")) == ("dummy", None)
    own = {"enable_prompt_tokens_details"}
    assert options.keys() - own == SETTINGS.engine_options("target").keys(), "the stock server has the same options"


def test_the_table_has_each_length_turn_and_mode(tmp_path):
    def answered(length: int) -> list[Answered]:
        return [
            Answered(mode, 1, turn, 100.0 + length * (mode == "dense"), length, length, 0, None, "", None)
            for mode in turns.MODES
            for turn in range(2)
        ]

    lengths = [
        {"document_tokens": n, "rows": rows_of(answered(n)), "totals": totals_of(answered(n))} for n in (4096, 8192)
    ]
    settings = {"target": "toy", "speculator": "s", "turns": 2, "rounds": 1}
    result = {"settings": settings, "lengths": lengths, "modes": dict.fromkeys(turns.MODES, "what it is")}
    columns, rows = turns.table(result)
    assert len(rows) == 2 * 2 * len(turns.MODES)
    assert {row[columns.index("prompt")] for row in rows} == {"4,096", "8,192"}
    assert "- *auto*: what it is." in turns.describe(result)
    turns.plot(result, tmp_path / "turns.png")
    assert (tmp_path / "turns.png").stat().st_size > 10_000
