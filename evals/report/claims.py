"""The rows of the first page of docs/results.md: each a claim, and how its figure follows from a result file.

Here also: rows that speak against Skim. Not here: the page's prose, which is in `evals/report/summary.py`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.report.soak import FAILED
from benchmarks.report.statistics import in_words
from evals.agents import results as agents
from evals.questions import results as answers
from evals.questions.ways import BM25, DEFAULT, NO_DOCUMENT
from evals.results import families, lengths, published

Result = dict[str, Any]

BENCH_KEEP = 0.2
"""`keep_rate` of the benchmarks of speed, whose random weights say nothing about what to keep."""


@dataclass(frozen=True)
class Claim:
    """One row. source: the result file, without `.json`. figure: words that follow from it. on: models and load.
    section: the title of the section with the details. awaited: the row is left out as long as there is no such file.
    """

    what: str
    source: str
    figure: Callable[[Result], str]
    on: str
    section: str
    awaited: bool = False


def _ttft(result: Result, tokens: int) -> Result:
    (row,) = (row for row in result["rows"] if (row["prompt_tokens"], row["keep_rate"]) == (tokens, BENCH_KEEP))
    return row


def _first_token(result: Result) -> str:
    ratios = {tokens: in_words(_ttft(result, tokens)["dense_over_skim"]) for tokens in (8192, 2048)}
    return f"{ratios[8192]} times as fast; with 2,048 tokens {ratios[2048]}"


def _over_limit(result: Result) -> str:
    return f"{in_words(_ttft(result, 8192)['skim_over_limit'])} times as long"


def _short(result: Result) -> str:
    rows = [row for row in result["rows"] if row["keep_rate"] is None]
    return "; ".join(f"{row['prompt_tokens']} tokens: {in_words(row['dense_over_skim'])}" for row in rows)


def _total(result: Result, mode: str) -> Result:
    (total,) = (total for total in result["totals"] if total["mode"] == mode)
    return total


def _turns(result: Result) -> str:
    return in_words(_total(result, "auto")["over_dense"])


def _turns_right(result: Result) -> str:
    skim, dense = _total(result, "auto"), _total(result, "dense")
    return f"{skim['right']} of {skim['judged']} right, dense {dense['right']}; times to first token {_turns(result)}"


def _after_the_first_turn(result: Result) -> str:
    return f"{in_words(_total(result, 'auto')['later_over_dense'])} times as long"


def _later_turns(result: Result) -> str:
    cells = [cell for cell in result["cells"] if cell["task"] in ("turn 3", "turn 4")]
    scores = (
        f"{name} {100 * _mean(cells, selector):.0f}"
        for name, selector in (("Skim", "auto + guard"), ("dense", "dense"))
    )
    return ", ".join(scores)


def _ratio(result: Result) -> str:
    return in_words(result["ratio"])


def _goodput(result: Result) -> str:
    skim, dense = (result["saturation"][name]["rate"] for name in ("skim", "dense"))
    return f"{result['ratio']:.1f} times: {skim:.2f} and {dense:.2f} requests/s"


def _families(selector: str, rate: float) -> Callable[[Result], str]:
    return lambda result: families.against_dense(result, selector, rate)


def _by_length(selector: str, rate: float, *length: int) -> Callable[[Result], str]:
    return lambda result: lengths.against_dense(result, (selector, rate), *length)


def _default(result: Result) -> str:
    case = "auto + guard", 0.0
    return f"{lengths.against_dense(result, case)}; {lengths.first_tokens(result, case)}"


def _on_gpu(result: Result) -> str:
    parts = []
    for row in result["rows"]:
        if row["keep_rate"] == BENCH_KEEP:
            parts.append(f"{row['dense_to_skim']['median']:.2f} times as fast at {row['prompt_tokens']:,} tokens")
    return ", ".join(parts)


def _needles(result: Result) -> str:
    at_default = [cell for cell in result["cells"] if cell["keep_rate"] in (BENCH_KEEP, 1.0)]
    means = {name: _mean(at_default, name) for name in ("speculator", "dense", "random", "wrong origin")}
    return ", ".join(f"{name} {mean:.2f}" for name, mean in means.items())


def _mean(cells: Iterable[Result], selector: str) -> float:
    scores = [cell["score"] for cell in cells if cell["selector"] == selector]
    return sum(scores) / len(scores)


def _speed(mode: str) -> Callable[[Result], str]:
    return lambda result: f"{in_words(result['modes'][mode]['ratio_to_plain'])} times"


def _rows_per_s(result: Result) -> str:
    return f"{_total(result, 'auto')['over_baseline']['median']:.2f} times (one round)"


def _refusals(result: Result) -> str:
    return f"{result['ratio']:.2f}; a refusal comes after {result['rows'][-1]['refusal_ms']['median']:.0f} ms (median)"


def _hostile(result: Result) -> str:
    highest = max(max(row["ratio"]) for row in result["rows"] if row["kind"] != "none")
    return f"at most {highest:.2f} times as long in any round"


def _overhead(result: Result) -> str:
    parts = []
    for row in result["rows"]:
        if (row["mode"], row["stream"], row["concurrency"]) == ("speculative", True, 1):
            added = row["added"]["skim"]["first_ms"]
            parts.append(f"{added['median']:.1f} ms ({added['low']:.1f} to {added['high']:.1f}) with {row['engine']}")
    return f"{' engines, '.join(parts)} engines"


def _soak(result: Result) -> str:
    served = [found["answers"] for found in result["rounds"] if found["could_answer"]]
    failed, asked = _count(served, *FAILED), sum(sum(answers.values()) for answers in served)
    return f"{_answers(result)}; {failed} of {asked:,} requests failed while something was left that could answer"


def _answers(result: Result) -> str:
    seen = [found["answers"] for found in result["rounds"]]
    right, wrong, hung = (_count(seen, kind) for kind in ("answered", "wrong", "hung"))
    return f"{right:,} right answers, {wrong} wrong, {hung} without an end"


def _count(answers: Iterable[Mapping[str, int]], *kinds: str) -> int:
    return sum(each.get(kind, 0) for each in answers for kind in kinds)


def _scale(result: Result) -> str:
    calm = "no pool oscillates" if result["calm"] else "a pool oscillates"
    return f"after {result['objective_met_again_after_s']:.0f} s; {calm}"


def _questions(result: Result) -> str:
    rows = [row for row in result["rows"] if row["keep_rate"] == 0.2]
    shares = {(row["set"], row["way"]): row["gold"] for row in rows}
    sets = dict.fromkeys(row["set"] for row in rows)
    return "; ".join(
        f"{name}: {shares[name, 'heads, windows']:.2f}, BM25 {shares[name, 'lexical']:.2f}" for name in sets
    )


def _forms(result: Result) -> str:
    of, *kept = (sum(row[part] for row in result["rows"]) for part in ("of", "task", "rules", "evidence", "control"))
    task, rules, evidence, control = kept
    return f"task {task}, rules {rules}, evidence {evidence} of {of}; evidence with the question last {control}"


def _of_people(rate: float) -> Callable[[Result], str]:
    def figure(result: Result) -> str:
        others = {f"{BM25} with as many tokens": (BM25, rate), "without the document": (NO_DOCUMENT, 0.0)}
        scores = {name: 100 * answers.whole(result, case).score for name, case in others.items()}
        said = "; ".join(f"{name} {score:.0f}" for name, score in scores.items())
        return f"{answers.against_dense(result, (DEFAULT, rate))}; {said}"

    return figure


def _benchmark(name: str) -> Callable[[Result], str]:
    def figure(result: Result) -> str:
        samples = [sample for sample in result["samples"] if sample["family"] == name]
        of_name = {**result, "samples": samples}
        bm25 = 100 * answers.whole(of_name, (BM25, 0.0)).score
        return f"{answers.against_dense(of_name)}; {BM25} with as many tokens {bm25:.0f}; {len(samples)} prompts"

    return figure


def _run_dense(result: Result) -> str:
    ran, of = answers.run_dense(result)
    return f"{ran} of {of} prompts"


def _evidence(result: Result) -> str:
    shares = {row["way"]: row["kept"] / row["of"] for row in result["rows"] if row["keep_rate"] == 0.1}
    return f"{shares['look-ahead']:.3f}, BM25 {shares['lexical']:.3f}"


RANDOM = "random weights (12 layers x 768, 2 x 256)"
RANDOM_6 = "random weights (6 layers x 768, 2 x 256)"
QWEN = "Qwen2.5-Coder 0.5B for 1.5B"
PEOPLE = "{} questions about papers and meetings of BAMBOO"
QUALITY = "Answer quality on real text, over time to first token"
BY_LENGTH = "Answer quality on real text, by prompt length"

SHOWN = (
    Claim(
        f"time to first token at keep rate {BENCH_KEEP}, compared with a stock vLLM server",
        "ttft",
        _first_token,
        f"prompt of 8,192 tokens; {RANDOM}",
        "Time to first token",
    ),
    Claim(
        "the same, compared with both models' forward passes alone",
        "ttft",
        _over_limit,
        f"prompt of 8,192 tokens; {RANDOM}",
        "Time to first token",
    ),
    Claim(
        "sum of the times to first token of a conversation / stock server with its prefix cache",
        "turns",
        _turns,
        f"8 turns about 8,192 tokens, keep rate 0.1; {RANDOM}",
        "Turns of a conversation",
    ),
    Claim(
        "the same with a real pair, without an option",
        "turns-qwen",
        _turns_right,
        f"4 turns about 4,096 tokens; {QWEN}",
        "Turns of a conversation",
    ),
    Claim(
        "mean time to first token of a trace of real traffic / stock server in the same KV memory",
        "replay",
        _ratio,
        f"49 requests; {RANDOM_6}",
        "Replay of a trace",
    ),
    Claim(
        "requests per second that meet a time to first token, Skim / stock server",
        "goodput",
        _goodput,
        f"4,096 tokens, keep rate 0.1; {RANDOM_6}",
        "Goodput: requests per second that meet a time to first token",
    ),
    Claim(
        "rows per second of a batch / vllm run-batch, documents that do not all fit into the KV cache",
        "batch-documents",
        _rows_per_s,
        f"16 rows, keep rate 0.4; {QWEN}",
        "A batch of requests, compared with vllm run-batch",
    ),
    Claim(
        "evidence that people marked for their questions, share of it that is kept at keep rate 0.2",
        "questions-bamboo",
        _questions,
        "80 questions about papers and meetings of BAMBOO, up to 4,096 tokens; Qwen2.5-Coder 0.5B",
        "Evidence that people marked",
    ),
    Claim(
        "task, rules and evidence kept, in the forms in which clients and people write prompts",
        "forms-qwen",
        _forms,
        "400 generated prompts of 57 forms in 3 languages, keep rate 0.2; Qwen2.5-Coder 0.5B",
        "Forms of prompts",
    ),
    Claim(
        "answers to questions of people, which choose an option, at keep rate 0.2 (no guard)",
        "answers-bamboo",
        _of_people(0.2),
        f"{PEOPLE.format(64)}, of which 8 are under 2,000 tokens and run dense; {QWEN}",
        "Answers to questions of people",
    ),
    Claim(
        "the same without an option of the request",
        "answers-default",
        _of_people(0.0),
        f"{PEOPLE.format(20)}, too few to tell a loss of 2 points; {QWEN}",
        "Answers to questions of people",
    ),
    Claim(
        "answer quality on RULER's eleven generated tasks, without an option",
        "published",
        _benchmark("ruler"),
        QWEN,
        "Tasks of published benchmarks",
        awaited=True,
    ),
    Claim(
        "answer quality without an option (`keep_rate: auto`, with the guard)",
        "lengths-qwen-default",
        _default,
        f"72 prompts of 12 tasks of 5 families that dense can do, 2,048 to 8,192 tokens; {QWEN}",
        BY_LENGTH,
    ),
    Claim(
        "the same, the shortest prompts that are skimmed, and more tasks",
        "lengths-qwen-short",
        _by_length("auto + guard", 0.0),
        f"28 prompts of the 6 families of tasks that dense can do, 2,048 tokens; {QWEN}",
        BY_LENGTH,
    ),
    Claim(
        "the same, longer prompts and all tasks",
        "lengths-qwen-long",
        _by_length("auto + guard", 0.0),
        f"78 prompts of the 6 families of tasks that dense can do, 4,096 to 16,384 tokens; {QWEN}, on one H200",
        BY_LENGTH,
    ),
    Claim(
        "right answers in turns 3 and 4 of conversations about functions, without an option",
        "eval-turns-code-auto",
        _later_turns,
        f"40 questions about documents of 4,096 tokens; {QWEN}",
        "Answer quality by keep rate",
    ),
    Claim(
        "the same, of conversations about records among other sentences",
        "eval-turns-records-auto",
        _later_turns,
        f"40 questions about documents of 4,096 tokens; {QWEN}",
        "Answer quality by keep rate",
    ),
    Claim(
        "edits of code in an agent's conversation whose tests pass, without an option",
        "agents-qwen",
        partial(agents.counts, group="edit"),
        f"conversations of 8 turns, prompts of 3,500 tokens and more; {QWEN}",
        "An agent's answers",
        awaited=True,
    ),
    Claim(
        "right answers of an agent: facts, corrected values, calls and edits, without an option",
        "agents-qwen",
        partial(agents.counts, group=agents.ALL),
        f"conversations of 8 turns, prompts of 3,500 tokens and more; {QWEN}",
        "An agent's answers",
        awaited=True,
    ),
    Claim(
        f"time to first token on a GPU at keep rate {BENCH_KEEP}, compared with dense",
        "gpu-ttft",
        _on_gpu,
        "one H200, one round, without CUDA graphs; random weights with the shapes of Llama 3.1 8B and 3.2 1B",
        "On a GPU: time to first token",
    ),
    Claim(
        f"mean score at keep rate {BENCH_KEEP}, with controls",
        "eval-needles-4096",
        _needles,
        "120 prompts of 3 retrieval tasks, 4,096 tokens; demo pair",
        "Answer quality by keep rate",
    ),
    Claim(
        "decoding with remote drafts / without drafts",
        "decode",
        _speed("remote_adaptive"),
        "answers that the look-ahead tokens cover; demo pair",
        "Decoding: plain, remote drafts, vLLM's draft_model",
    ),
    Claim(
        "latency that router, Ray and network add to a chat request's first token",
        "overhead",
        _overhead,
        "prompts of 2,048 tokens, one at a time; demo pair",
        "Latency added by the router, Ray and the network",
    ),
    Claim(
        "requests served per second at three times the sustainable load / most at any load",
        "refusals",
        _refusals,
        "HTTP, mock engines",
        "Overload over HTTP: served and refused",
    ),
    Claim(
        "time to first token beside hostile clients",
        "hostile",
        _hostile,
        "HTTP, mock engines",
        "Time to first token beside hostile clients",
    ),
    Claim(
        "the time to first token meets its objective again after the load has risen fivefold",
        "scale",
        _scale,
        "mock engines, policy `work`",
        "Autoscaling under a step of the load",
    ),
    Claim(
        "answers while parts of the deployment die",
        "soak",
        _soak,
        "30 minutes at 80 % load, mock engines",
        "A long run while parts die",
    ),
    Claim(
        "answers while the draft channel is cut or the KV cache is full",
        "engine-soak",
        _answers,
        "3 minutes at 80 % load, demo pair on vLLM",
        "Real engines while the draft channel is cut, or the KV cache full",
    ),
)

AGAINST = (
    Claim(
        "tasks of published benchmarks that lose points without an option",
        "published",
        published.lost,
        QWEN,
        "Tasks of published benchmarks",
        awaited=True,
    ),
    Claim(
        "questions of people with options to choose from that the guard runs dense, so that nothing is saved",
        "answers-default",
        _run_dense,
        f"those of {PEOPLE.format(20)} with 2,000 tokens and more; {QWEN}",
        "Answers to questions of people",
    ),
    Claim(
        f"answer quality at keep rate {BENCH_KEEP} of chunks (`granularity: chunk`), without the guard",
        "families-qwen",
        _families("speculator", BENCH_KEEP),
        f"192 prompts of the 7 families of tasks that dense can do; {QWEN}",
        QUALITY,
    ),
    Claim(
        "answer quality at a length that runs dense by default (`min_prompt_tokens`), if it is skimmed",
        "lengths-qwen-short",
        _by_length("auto + guard, windows", 0.0, 1500),
        f"28 prompts of the 6 families of tasks that dense can do, 1,500 tokens; {QWEN}",
        BY_LENGTH,
    ),
    Claim(
        "time to first token of a conversation's later turns with a real pair / stock server with its prefix cache",
        "turns-qwen",
        _after_the_first_turn,
        f"3 turns after the first one about 4,096 tokens; {QWEN}",
        "Turns of a conversation",
    ),
    Claim(
        "speed of short prompts, which run dense / stock server",
        "ttft",
        _short,
        RANDOM,
        "Time to first token",
    ),
    Claim(
        "decoding with remote drafts on a real pair / without drafts",
        "decode-qwen",
        _speed("remote_adaptive"),
        f"Python code of 1,024 tokens; {QWEN}",
        "Decoding: plain, remote drafts, vLLM's draft_model",
    ),
    Claim(
        "rows per second of a batch / vllm run-batch, documents that fit into the KV cache",
        "batch",
        _rows_per_s,
        f"12 rows, all of which Skim ran dense; {QWEN}",
        "A batch of requests, compared with vllm run-batch",
    ),
    Claim(
        "share of the prompts whose evidence is all kept, for questions that share words with it",
        "evidence",
        _evidence,
        "200 prompts of 2,048 tokens, keep rate 0.1; SmolLM2-135M as speculator",
        "Evidence kept by a selection",
    ),
)
