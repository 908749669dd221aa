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
        f"time to first token on a GPU at keep rate {BENCH_KEEP}, compared with dense",
        "gpu-ttft",
        figures.on_gpu,
        "one H200, one round, without CUDA graphs; random weights with the shapes of Llama 3.1 8B and 3.2 1B",
        "On a GPU: time to first token",
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
        "latency that router, Ray and network add to a chat request's first token",
        "overhead",
        figures.overhead,
        "prompts of 2,048 tokens, one at a time; demo pair",
        "Latency added by the router, Ray and the network",
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
)
