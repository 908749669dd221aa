"""The rows of the first page of docs/results.md: each a claim, and the result file from which its figure follows.

Here also: rows that speak against Skim. Not here: how a figure follows (`evals/report/figures.py`), and the prose of
the page (`evals/report/summary.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from evals.agents import results as agents
from evals.report import figures
from evals.report.figures import BENCH_KEEP, Result
from evals.results import published


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
        figures.first_token,
        f"prompt of 8,192 tokens; {RANDOM}",
        "Time to first token",
    ),
    Claim(
        "the same, compared with both models' forward passes alone",
        "ttft",
        figures.over_limit,
        f"prompt of 8,192 tokens; {RANDOM}",
        "Time to first token",
    ),
    Claim(
        "sum of the times to first token of a conversation / stock server with its prefix cache",
        "turns",
        figures.turns,
        f"8 turns about 8,192 tokens, keep rate 0.1; {RANDOM}",
        "Turns of a conversation",
    ),
    Claim(
        "the same with a real pair, without an option",
        "turns-qwen",
        figures.turns_right,
        f"4 turns about 4,096 tokens; {QWEN}",
        "Turns of a conversation",
    ),
    Claim(
        "the same where the target has read the whole conversation between the turns (catch-up)",
        "turns-qwen",
        figures.caught_up,
        f"4 turns about 4,096 tokens; {QWEN}",
        "Turns of a conversation",
    ),
    Claim(
        "mean time to first token of a trace of real traffic / stock server in the same KV memory",
        "replay",
        figures.ratio,
        f"49 requests; {RANDOM_6}",
        "Replay of a trace",
    ),
    Claim(
        "requests per second that meet a time to first token, Skim / stock server",
        "goodput",
        figures.goodput,
        f"4,096 tokens, keep rate 0.1; {RANDOM_6}",
        "Goodput: requests per second that meet a time to first token",
    ),
    Claim(
        "evidence that people marked for their questions, share of it that is kept at keep rate 0.2",
        "questions-bamboo",
        figures.questions,
        "80 questions about papers and meetings of BAMBOO, up to 4,096 tokens; Qwen2.5-Coder 0.5B",
        "Evidence that people marked",
    ),
    Claim(
        "task, rules and evidence kept, in the forms in which clients and people write prompts",
        "forms-qwen",
        figures.forms,
        "400 generated prompts of 57 forms in 3 languages, keep rate 0.2; Qwen2.5-Coder 0.5B",
        "Forms of prompts",
    ),
    Claim(
        "answers to questions of people, which choose an option, at keep rate 0.2 (no guard)",
        "answers-bamboo",
        figures.of_people(0.2),
        f"{PEOPLE.format(64)}, of which 8 are under 2,000 tokens and run dense; {QWEN}",
        "Answers to questions of people",
    ),
    Claim(
        "the same without an option of the request",
        "answers-default",
        figures.of_people(0.0),
        f"{PEOPLE.format(20)}, too few to tell a loss of 2 points; {QWEN}",
        "Answers to questions of people",
    ),
    Claim(
        "answers to questions of people about texts of six sets, most of them free, without an option of the request",
        "answers-free",
        figures.of_people(0.0),
        f"papers, services, stories, Wikipedia, a contract and dialogues of L-Eval; {QWEN}",
        "Answers to questions of people",
    ),
    Claim(
        "answer quality on RULER's eleven generated tasks, without an option",
        "published",
        figures.benchmark("ruler"),
        QWEN,
        "Tasks of published benchmarks",
        awaited=True,
    ),
    Claim(
        "answer quality without an option (`keep_rate: auto`, with the guard)",
        "lengths-qwen-default",
        figures.default,
        f"72 prompts of 12 tasks of 5 families that dense can do, 2,048 to 8,192 tokens; {QWEN}",
        BY_LENGTH,
    ),
    Claim(
        "the same, the shortest prompts that are skimmed, and more tasks",
        "lengths-qwen-short",
        figures.by_length("auto + guard", 0.0),
        f"28 prompts of the 6 families of tasks that dense can do, 2,048 tokens; {QWEN}",
        BY_LENGTH,
    ),
    Claim(
        "the same, longer prompts and all tasks",
        "lengths-qwen-long",
        figures.by_length("auto + guard", 0.0),
        f"78 prompts of the 6 families of tasks that dense can do, 4,096 to 16,384 tokens; {QWEN}, on one H200,"
        " one of the README's three runs",
        BY_LENGTH,
    ),
    Claim(
        "right answers in turns 3 and 4 of conversations about functions, without an option",
        "eval-turns-code-auto",
        figures.later_turns,
        f"40 questions about documents of 4,096 tokens; {QWEN}",
        "Answer quality by keep rate",
    ),
    Claim(
        "the same, of conversations about records among other sentences",
        "eval-turns-records-auto",
        figures.later_turns,
        f"40 questions about documents of 4,096 tokens; {QWEN}",
        "Answer quality by keep rate",
    ),
    Claim(
        f"time to first token on a GPU at keep rate {BENCH_KEEP}, compared with dense",
        "gpu-ttft",
        figures.on_gpu,
        "one H200, one round, without CUDA graphs; random weights with the shapes of Llama 3.1 8B and 3.2 1B",
        "On a GPU: time to first token",
    ),
    Claim(
        f"mean score at keep rate {BENCH_KEEP}, with controls",
        "eval-needles-4096",
        figures.needles,
        "120 prompts of 3 retrieval tasks, 4,096 tokens; demo pair",
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
        "decoding with remote drafts / without drafts",
        "decode",
        figures.speed("remote_adaptive"),
        "answers that the look-ahead tokens cover; demo pair",
        "Decoding: plain, remote drafts, vLLM's draft_model",
    ),
    Claim(
        "latency that router, Ray and network add to a chat request's first token",
        "overhead",
        figures.overhead,
        "prompts of 2,048 tokens, one at a time; demo pair",
        "Latency added by the router, Ray and the network",
    ),
    Claim(
        "requests served per second at three times the sustainable load / most at any load",
        "refusals",
        figures.refusals,
        "HTTP, mock engines",
        "Overload over HTTP: served and refused",
    ),
    Claim(
        "time to first token beside hostile clients",
        "hostile",
        figures.hostile,
        "HTTP, mock engines",
        "Time to first token beside hostile clients",
    ),
    Claim(
        "the time to first token meets its objective again after the load has risen fivefold",
        "scale",
        figures.scale,
        "mock engines",
        "Autoscaling under a step of the load",
    ),
    Claim(
        "answers while parts of the deployment die",
        "soak",
        figures.soak,
        "30 minutes at 80 % load, mock engines",
        "A long run while parts die",
    ),
    Claim(
        "answers while the draft channel is cut or the KV cache is full",
        "engine-soak",
        figures.soak_answers,
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
        figures.ran_dense,
        f"those of {PEOPLE.format(20)} with 2,000 tokens and more; {QWEN}",
        "Answers to questions of people",
    ),
    Claim(
        f"answer quality at keep rate {BENCH_KEEP} of chunks (`granularity: chunk`), without the guard",
        "families-qwen",
        figures.of_families("speculator", BENCH_KEEP),
        f"192 prompts of the 7 families of tasks that dense can do; {QWEN}",
        QUALITY,
    ),
    Claim(
        "answer quality at a length that runs dense by default (`min_prompt_tokens`), if it is skimmed",
        "lengths-qwen-short",
        figures.by_length("auto + guard, windows", 0.0, 1500),
        f"28 prompts of the 6 families of tasks that dense can do, 1,500 tokens; {QWEN}",
        BY_LENGTH,
    ),
    Claim(
        "time to first token of a conversation's later turns with a real pair / stock server with its prefix cache",
        "turns-qwen",
        figures.after_the_first_turn,
        f"3 turns after the first one about 4,096 tokens; {QWEN}",
        "Turns of a conversation",
    ),
    Claim(
        "speed of short prompts, which run dense / stock server",
        "ttft",
        figures.short,
        RANDOM,
        "Time to first token",
    ),
    Claim(
        "decoding with remote drafts on a real pair / without drafts",
        "decode-qwen",
        figures.speed("remote_adaptive"),
        f"Python code of 1,024 tokens; {QWEN}",
        "Decoding: plain, remote drafts, vLLM's draft_model",
    ),
    Claim(
        "rows per second of a batch / vllm run-batch, documents that fit into the KV cache",
        "batch",
        figures.rows_per_s,
        f"12 rows, all of which Skim ran dense; {QWEN}",
        "A batch of requests, compared with vllm run-batch",
    ),
    Claim(
        "share of the prompts whose evidence is all kept, for questions that share words with it",
        "evidence",
        figures.evidence,
        "200 prompts of 2,048 tokens, keep rate 0.1; SmolLM2-135M as speculator",
        "Evidence kept by a selection",
    ),
)
