"""The figures of the rows in `evals.report.claims`: each is a function from a result file to words."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from benchmarks.report.soak import FAILED
from benchmarks.report.statistics import in_words
from evals.questions import results as answers
from evals.questions.ways import BM25, DEFAULT, NO_DOCUMENT

Result = dict[str, Any]

BENCH_KEEP = 0.2
"""`keep_rate` of the benchmarks of speed, whose random weights say nothing about what to keep."""


def _ttft(result: Result, tokens: int) -> Result:
    (row,) = (row for row in result["rows"] if (row["prompt_tokens"], row["keep_rate"]) == (tokens, BENCH_KEEP))
    return row


def first_token(result: Result) -> str:
    ratios = {tokens: in_words(_ttft(result, tokens)["dense_over_skim"]) for tokens in (8192, 2048)}
    return f"{ratios[8192]} times as fast; with 2,048 tokens {ratios[2048]}"


def over_limit(result: Result) -> str:
    return f"{in_words(_ttft(result, 8192)['skim_over_limit'])} times as long"


def short(result: Result) -> str:
    rows = [row for row in result["rows"] if row["keep_rate"] is None]
    return "; ".join(f"{row['prompt_tokens']} tokens: {in_words(row['dense_over_skim'])}" for row in rows)


def _total(result: Result, mode: str) -> Result:
    (total,) = (total for total in result["totals"] if total["mode"] == mode)
    return total


def turns(result: Result, mode: str = "auto") -> str:
    return in_words(_total(result, mode)["over_dense"])


def turns_right(result: Result, mode: str = "auto") -> str:
    skim, dense = _total(result, mode), _total(result, "dense")
    times = turns(result, mode)
    return f"{skim['right']} of {skim['judged']} right, dense {dense['right']}; times to first token {times}"


def caught_up(result: Result) -> str:
    mode = "caught up"
    return f"{turns_right(result, mode)}, of later turns {in_words(_total(result, mode)['later_over_dense'])}"


def after_the_first_turn(result: Result) -> str:
    return f"{in_words(_total(result, 'auto')['later_over_dense'])} times as long"


def goodput(result: Result) -> str:
    skim, dense = (result["saturation"][name]["rate"] for name in ("skim", "dense"))
    return f"{result['ratio']:.1f} times: {skim:.2f} and {dense:.2f} requests/s"


def on_gpu(result: Result) -> str:
    parts = []
    for row in result["rows"]:
        if row["keep_rate"] == BENCH_KEEP:
            parts.append(f"{row['dense_to_skim']['median']:.2f} times as fast at {row['prompt_tokens']:,} tokens")
    return ", ".join(parts)


def speed(mode: str) -> Callable[[Result], str]:
    return lambda result: f"{in_words(result['modes'][mode]['ratio_to_plain'])} times"


def rows_per_s(result: Result) -> str:
    return f"{_total(result, 'auto')['over_baseline']['median']:.2f} times (one round)"


def overhead(result: Result) -> str:
    parts = []
    for row in result["rows"]:
        if (row["mode"], row["stream"], row["concurrency"]) == ("speculative", True, 1):
            added = row["added"]["skim"]["first_ms"]
            parts.append(f"{added['median']:.1f} ms ({added['low']:.1f} to {added['high']:.1f}) with {row['engine']}")
    return f"{' engines, '.join(parts)} engines"


def soak(result: Result) -> str:
    served = [found["answers"] for found in result["rounds"] if found["could_answer"]]
    failed, asked = _count(served, *FAILED), sum(sum(answers.values()) for answers in served)
    return f"{soak_answers(result)}; {failed} of {asked:,} requests failed while something was left that could answer"


def soak_answers(result: Result) -> str:
    seen = [found["answers"] for found in result["rounds"]]
    right, wrong, hung = (_count(seen, kind) for kind in ("answered", "wrong", "hung"))
    return f"{right:,} right answers, {wrong} wrong, {hung} without an end"


def _count(answers: Iterable[Mapping[str, int]], *kinds: str) -> int:
    return sum(each.get(kind, 0) for each in answers for kind in kinds)


def scale(result: Result) -> str:
    calm = "no pool oscillates" if result["calm"] else "a pool oscillates"
    return f"after {result['objective_met_again_after_s']:.0f} s; {calm}"


def questions(result: Result) -> str:
    rows = [row for row in result["rows"] if row["keep_rate"] == 0.2]
    shares = {(row["set"], row["way"]): row["gold"] for row in rows}
    sets = dict.fromkeys(row["set"] for row in rows)
    return "; ".join(
        f"{name}: {shares[name, 'heads, windows']:.2f}, BM25 {shares[name, 'lexical']:.2f}" for name in sets
    )


def forms(result: Result) -> str:
    of, *kept = (sum(row[part] for row in result["rows"]) for part in ("of", "task", "rules", "evidence", "control"))
    task, rules, evidence, control = kept
    return f"task {task}, rules {rules}, evidence {evidence} of {of}; evidence with the question last {control}"


def of_people(rate: float) -> Callable[[Result], str]:
    def figure(result: Result) -> str:
        others = {f"{BM25} with as many tokens": (BM25, rate), "without the document": (NO_DOCUMENT, 0.0)}
        scores = {name: 100 * answers.whole(result, case).score for name, case in others.items()}
        said = "; ".join(f"{name} {score:.0f}" for name, score in scores.items())
        lengths = [sample["length"] for sample in result["samples"]]
        of = f"prompts of {min(lengths):,} to {max(lengths):,} tokens"
        return f"{answers.against_dense(result, (DEFAULT, rate))}; {said}; {of}"

    return figure


def benchmark(name: str) -> Callable[[Result], str]:
    def figure(result: Result) -> str:
        samples = [sample for sample in result["samples"] if sample["family"] == name]
        of_name = {**result, "samples": samples}
        bm25 = 100 * answers.whole(of_name, (BM25, 0.0)).score
        return f"{answers.against_dense(of_name)}; {BM25} with as many tokens {bm25:.0f}; {len(samples)} prompts"

    return figure


def ran_dense(result: Result) -> str:
    ran, of = answers.run_dense(result)
    return f"{ran} of {of} prompts"
