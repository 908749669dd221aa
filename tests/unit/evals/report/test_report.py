"""The results page and its plots follow from the committed JSON files."""

import json
import re
from pathlib import Path

import pytest

from benchmarks.engines.decode_engines import MODES
from benchmarks.latency import ttft_results
from benchmarks.report import plots
from benchmarks.report.machine import code
from evals.report import readme
from evals.report.__main__ import (
    DETAILS,
    PAGE,
    PLOTS,
    ROOT,
    SECTIONS,
    SUBJECTS,
    details,
    draw,
    figures,
    older,
    report,
    slug,
    subjects,
)
from evals.tasks.registry import REPLACED, TASKS
from kv_transfer.options import HEADS_COVERAGE, LONG_COVERAGE, LONG_FROM
from router.options.request import PrefillOptions

README = ROOT / "README.md"
BENCH_KEEP = 0.2
"""`keep_rate` of the benchmarks of speed."""

SCORING = {
    "rows": [
        {"prompt_tokens": 16384, "kernel": "triton", "ms": 0.25, "copy_bytes_per_second": 4e12, "share_of_copy": 0.5}
        | {"peak_bytes": 2**24, "difference": 1e-7}
    ],
    "settings": {"model": "llama-1b", "look_ahead": 8, "pool_kernel": 13, "rounds": 5},
    "machine": {"usable_cores": 2, "machine": "x86_64", "gpu": None, "day": "2026-11-27"},
    "command": "python -m benchmarks.gpu scoring",
}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A folder with one result."""
    (tmp_path / "gpu-scoring.json").write_text(json.dumps(SCORING))
    return tmp_path


def pages(results: Path) -> str:
    """The details of all subjects that have a result in the folder."""
    return "\n".join(details(subject, results) for subject in SUBJECTS)


def test_the_committed_pages_are_the_generated_ones() -> None:
    assert PAGE.read_text() == report(), "run make results"
    assert {file.stem for file in DETAILS.iterdir()} == {slug(subject) for subject in subjects()}
    for subject in subjects():
        assert (DETAILS / f"{slug(subject)}.md").read_text() == details(subject), "run make results"


@pytest.mark.parametrize("file", [file for _, file in figures()], ids=lambda file: file.stem)
def test_the_committed_plots_are_those_of_the_committed_results(file: Path) -> None:
    plot = PAGE.parent / PLOTS / f"{file.stem}.png"
    assert plots.source_of(plot) == plots.digest(json.loads(file.read_text())), "run make results"


def test_every_result_is_on_the_page_once() -> None:
    shown = [file for _, file in figures()]
    assert sorted(shown) == sorted((ROOT / "benchmarks" / "results").glob("*.json"))


def test_the_readme_shows_one_plot_of_the_page() -> None:
    of_page = {f"docs/{PLOTS}/{file.stem}.png" for _, file in figures()}
    (shown,) = re.findall(r"!\[[^]]*\]\(([^)]+)\)", README.read_text())
    assert shown in of_page


def committed(name: str) -> dict:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


def test_the_speed_in_the_readme_is_that_of_the_results() -> None:
    result = committed("ttft")
    columns, rows = ttft_results.table(result)
    (row,) = (dict(zip(columns, row, strict=True)) for row in rows if row[:2] == ["8,192", f"{BENCH_KEEP}"])
    ratio, lowest, highest = re.fullmatch(r"(\S+) \((\S+) to (\S+)\)", row["dense / Skim"]).groups()
    skim, dense = (f"{int(row[column].replace(',', '')) / 1000:.1f} s" for column in ("Skim ms", "dense ms"))
    text = " ".join(README.read_text().split())
    rounds = result["settings"]["rounds"]
    figure = f"{ratio} times as fast as from a stock vLLM server (median of {rounds} rounds, "
    assert f"At keep rate {BENCH_KEEP} and with a prompt of 8,192 tokens" in text
    assert figure + f"range {lowest} to {highest}; {skim} against {dense})" in text


def test_what_other_streams_keep_in_the_readme_is_that_of_the_results() -> None:
    result = committed("interference")
    skim, *stock = ((row["system"], row["share"]["median"]) for row in result["rows"])
    assert skim[0] == "skim"
    settings = result["settings"]
    assert (settings["prompts"], settings["prompt_tokens"], result["machine"]["usable_cores"]) == (2, 8192, 2)
    kept = f"another stream keeps {skim[1]:.2f} of its speed; with stock vLLM {max(share for _, share in stock):.2f}."
    assert f"While two prompts of 8,192 tokens are read on 2 cores, {kept}" in " ".join(README.read_text().split())


def test_the_first_table_of_the_readme_is_that_of_the_results() -> None:
    results, text = ROOT / "benchmarks" / "results", README.read_text()
    measured = text.split("## Measured")[1]
    assert measured.index(readme.table(results)) == measured.index("what|"), "natural questions, then RULER, then speed"
    assert readme.heading(results) in measured
    assert readme.losses(results) in " ".join(text.split())


def test_a_new_result_changes_what_the_readme_must_say(tmp_path: Path) -> None:
    """The negative control: the README fails with another result, and with that of the published benchmarks."""
    for name in ("answers-free", "answers-default", "questions-natural", "questions-natural2"):
        (tmp_path / f"{name}.json").write_text(json.dumps(committed(name)))
    before = readme.table(tmp_path)
    answers_now = committed("answers-default")
    answers_now["samples"] = answers_now["samples"][:10]
    (tmp_path / "answers-default.json").write_text(json.dumps(answers_now))
    assert readme.table(tmp_path) != before
    assert readme.table(tmp_path).splitlines()[3].startswith("answers, choices (older)|10|")
    published = {"samples": [_published(task, n, kept) for n in (4096, 8192) for task, kept in (("vt", 1), ("cwe", 0))]}
    (tmp_path / "published.json").write_text(json.dumps(published))
    assert readme.table(tmp_path).splitlines()[-2:] == [
        f"RULER, {n} tokens|2|100|50 (too few documents)|100|0.25" for n in ("4,096", "8,192")
    ]
    assert readme.losses(tmp_path) == "Tasks that lose points: ruler/cwe -100."
    (tmp_path / "questions-natural.json").unlink()
    with pytest.raises(FileNotFoundError):
        readme.table(tmp_path)
    (tmp_path / "answers-free.json").write_text(json.dumps({"samples": [{"length": 4097}]}))
    assert readme.heading(tmp_path).endswith("up to 4,097 tokens:")


def _published(task: str, length: int, default: float) -> dict:
    scores = [["dense", 1.0, 1, length], ["default", 0.0, default, length // 4], ["BM25", 0.0, 1, length // 4]]
    where = {"task": f"ruler/{task}", "family": "ruler", "length": length, "seed": f"{task} {length}"}
    return {**where, "prompt": length, "scores": scores}


@pytest.mark.parametrize("file", [file for _, file in figures()], ids=lambda file: file.stem)
def test_no_result_names_a_path_of_the_machine(file: Path) -> None:
    """Relative paths say as much to a reader."""
    assert not re.search(r"[\s'\"=]/(?!dev/)\w+/", file.read_text())


def test_the_gpu_figures_in_the_readme_are_those_of_the_results() -> None:
    text = " ".join(README.read_text().split())
    (row,) = (r for r in committed("gpu-ttft")["rows"] if (r["prompt_tokens"], r["keep_rate"]) == (65536, BENCH_KEEP))
    ratio = row["dense_to_skim"]["median"]
    assert f"after 65,536 tokens comes {ratio:.2f} times as fast as dense (keep {BENCH_KEEP})" in text


def test_what_later_turns_take_is_that_of_the_results() -> None:
    rows = [row for row in committed("turns-qwen")["rows"] if row["mode"] == "auto" and row["turn"] > 1]
    total = sum(row["parts_ms"]["total"] for row in rows)
    target, speculator = (sum(row["parts_ms"][part] for row in rows) / total for part in ("prefill", "speculate"))
    page = " ".join((ROOT / "docs" / "architecture" / "conversations.md").read_text().split())
    assert (
        f"these were {100 * target:.0f} % and {100 * speculator:.0f} % of such turns' time to the first token" in page
    )


def test_the_keep_rate_of_the_readme_is_that_of_a_request() -> None:
    assert f"(`keep_rate: {PrefillOptions().keep_rate}`)" in README.read_text()
    assert f"hold {HEADS_COVERAGE} of a prompt's importance" in README.read_text()
    assert f"less from {LONG_FROM:,} tokens on" in README.read_text()
    options = (ROOT / "docs" / "options.md").read_text()
    assert f"{HEADS_COVERAGE} by heads, and {LONG_COVERAGE} of a prompt with {LONG_FROM:,} tokens" in options


def test_the_first_page_has_a_row_of_each_result() -> None:
    links = re.findall(r"^\| \[[^|]+\]\(results/([^)]+\.md)#[^)]+\): `([^`]+)` \|", report(), re.MULTILINE)
    assert [name for _, name in links] == [file.stem for _, file in figures()]
    assert {page for page, _ in links} == {f"{slug(subject)}.md" for subject in subjects()}


def test_a_result_of_other_code_is_named(tmp_path: Path) -> None:
    """Speed depends on all that serves, quality on the selection alone."""
    for name, kind in (("goodput", "serving"), ("forms-qwen", "selection")):
        changed = committed(name) | {"older": "a part is gone"}
        changed["machine"]["code"] = {"serving": "before", "selection": "before"} | {kind: code()[kind]}
        (tmp_path / f"{name}.json").write_text(json.dumps(changed))
    assert older(tmp_path) == []
    assert f"| {code()['serving']} | a part is gone |" in report(tmp_path)
    assert "**Older than the code**: a part is gone.\n" in details("Load", tmp_path)
    changed["machine"]["code"] = {"selection": "before"}
    (tmp_path / "forms-qwen.json").write_text(json.dumps(changed))
    assert older(tmp_path) == ["forms-qwen"]


def test_a_number_comes_from_its_file(results: Path) -> None:
    page = pages(results)
    assert "| 16,384 | triton | 0.250 | 0.50 | 4,000 | 16 | 1.0e-07 |" in page
    assert "`python -m benchmarks.gpu scoring`; 2 cores, x86_64, no GPU, 2026-11-27." in page
    assert "![On a GPU: scoring](../plots/gpu-scoring.png)" in page
    assert "Older than the code" not in page
    assert "## Decoding" not in page


def test_a_result_names_only_what_the_code_still_has_or_says_that_it_is_older() -> None:
    for file in (ROOT / "benchmarks" / "results").glob("decode*.json"):
        result = json.loads(file.read_text())
        assert "older" in result or set(result["modes"]) <= set(MODES), file.stem


def test_a_task_of_a_result_is_in_the_code_or_the_page_says_what_replaced_it() -> None:
    measured = {task for _, file in figures() for task in json.loads(file.read_text()).get("tasks", {})}
    assert {task for task in measured - TASKS.keys() - REPLACED.keys() if not task.startswith("turn ")} == set()
    for task in measured & REPLACED.keys():
        [line] = re.findall(rf"^- `{task}`: .+$", details("Answer quality"), re.MULTILINE)
        assert line.endswith(f"Since then replaced by `{REPLACED[task]}`.")


def test_each_task_is_described_once() -> None:
    described = [re.findall(r"^- `([^`]+)`: ", details(subject), re.MULTILINE) for subject in SUBJECTS]
    assert all(len(of_page) == len(set(of_page)) for of_page in described)
    measured = {task for _, file in figures() for task in json.loads(file.read_text()).get("tasks", {})}
    assert measured
    assert measured <= set().union(*described)


def test_sections_keep_their_order(results: Path) -> None:
    (results / "decode.json").write_text((ROOT / "benchmarks" / "results" / "decode-qwen.json").read_text())
    page = pages(results)
    assert page.index("## Decoding") < page.index("## On a GPU")
    assert len({section.key for section in SECTIONS}) == len(SECTIONS)


def test_a_plot_knows_its_result(results: Path, tmp_path: Path) -> None:
    draw(tmp_path / "plots", results)
    plot = tmp_path / "plots" / "gpu-scoring.png"
    assert plots.source_of(plot) == plots.digest(SCORING) == plots.digest({**SCORING, "older": "a part is gone"})
    assert plots.source_of(plot) != plots.digest({**SCORING, "rows": []})


def decode_result(**changed: object) -> dict:
    settings = {"target": "t", "speculator": "s", "prompts": 1, "prompt_tokens": 2048, "rounds": 1, "batch": 1}
    settings |= {"keep_rate": 0.2, "look_ahead": 8, "drafts": 1, "ignore_eos": True, **changed}
    return {"settings": settings, "machine": SCORING["machine"], "command": "skim bench decode"}


def decode_modes(ms_per_token: float) -> dict:
    mode = {"ms_per_token": ms_per_token, "tokens_per_verify": 1.0, "ms_per_round": None}
    mode |= {"ratio_to_plain": {"median": 1.0, "lowest": 1.0, "highest": 1.0}, "kv_bytes_per_session": None}
    mode |= {"ahead_hit_rate": None}
    return {"modes": {"plain": {**mode, "acceptance_per_position": [0.0]}}}


def test_several_lengths_of_prompts_share_a_table_and_a_plot(results: Path, tmp_path: Path) -> None:
    several = {"by_prompt_tokens": {"2048": decode_modes(55.0), "8192": decode_modes(111.0)}}
    (results / "decode.json").write_text(json.dumps(decode_result(prompt_tokens=[2048, 8192]) | several))
    page = pages(results)
    assert "1 prompts of 2048 or 8192 tokens per round" in page
    assert page.index("| plain, 2048 tokens | 1.00 | 1.00 to 1.00 | 55.00 |") < page.index("| plain, 8192 tokens | ")
    assert "KV kB" not in page  # this column is empty in all rows
    draw(tmp_path / "plots", results)
    assert (tmp_path / "plots" / "decode.png").exists()


def test_the_first_token_of_the_real_pair_in_the_readme_is_that_of_the_results() -> None:
    result = committed("turns-first-8192")
    [row] = [row for row in result["rows"] if row["mode"] == "auto"]
    text = " ".join(README.read_text().split())
    assert f"in {row['prompt_tokens']:,.0f} tokens comes after {row['over_dense']['median']:.2f} of a stock" in text
    assert f"({result['settings']['rounds']} rounds); words select {row['kept_tokens']:.0f} tokens" in text


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        ("speculator_service/selection/select.py", {"selection", "serving"}),
        ("speculator_service/scoring/profiles/one.json", {"selection", "serving"}),
        ("router/decision/whole_text.npz", {"selection", "serving"}),
        ("router/pools/serve_pools.py", {"serving"}),
        ("cluster/plan.py", set()),
    ],
)
def test_the_digest_changes_with_what_a_result_depends_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, changes: set[str]
) -> None:
    monkeypatch.setattr("benchmarks.report.machine.ROOT", tmp_path)
    before = code()
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text("new")
    assert {kind for kind, digest in code().items() if digest != before[kind]} == changes
    assert (ROOT / file).exists() or file.endswith("one.json"), "the file is the product's"
