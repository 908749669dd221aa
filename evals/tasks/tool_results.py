"""Long results of tools, as tool messages, with the question before them: JSON records, log lines, and an agent's loop
of two calls.
"""

import json
import random
from typing import Any

from evals.tasks.quiz import Frame, Message, Quiz
from evals.tasks.source_texts import CHARACTERS_PER_TOKEN, NAMES

COMPANIES = ("Norwind", "Baltica", "Kestrel", "Orbis", "Tallow", "Vireo", "Sunder", "Quarry", "Lumen", "Harrow")
KINDS = ("Foods", "Textiles", "Logistics", "Instruments", "Paper", "Glass", "Optics", "Timber")
CITIES = ("Lagos", "Lima", "Oslo", "Perth", "Porto", "Quito", "Riga", "Turin")
STATES = ("paid", "open", "overdue", "cancelled")
STEPS = ("resize-images", "build-index", "send-mail", "compact-log", "sync-files", "train-model")
CUSTOMERS = 5
ASKED_AGAIN = 12
"""Number of other values that an answer must not state; an answer with all values then scores 0."""
OTHER_OBJECTS = 5
"""As ASKED_AGAIN, for objects that take many lines."""


def json_records(tokens: int, rng: random.Random) -> Quiz:
    """A tool returned many invoices as JSON; the question asks for the total of one. Metric: the answer states it and
    none of twelve other totals.
    """
    count = _lines(tokens, 110)
    numbers, totals = rng.sample(range(10_000, 99_999), count), rng.sample(range(10_000, 99_999), count)
    records = [
        json.dumps(
            {
                "invoice": f"INV-{number}",
                "customer": f"{rng.choice(COMPANIES)} {rng.choice(KINDS)}",
                "status": rng.choice(STATES),
                "due": _date(rng),
                "total": _amount(total),
            }
        )
        for number, total in zip(numbers, totals, strict=True)
    ]
    return _total_of(f"invoice INV-{numbers[0]}", records, totals, ASKED_AGAIN, "\n", rng)


def json_objects(tokens: int, rng: random.Random) -> Quiz:
    """A tool returned many invoices as indented JSON, a field a line; the question names the order of one and asks for
    its total. Metric: the answer states it and none of five other totals.
    """
    count = _lines(tokens, 250)
    numbers, orders, totals = (rng.sample(range(10_000, 99_999), count) for _ in range(3))
    records = [
        json.dumps(
            {
                "invoice": f"INV-{number}",
                "customer": {"name": f"{rng.choice(COMPANIES)} {rng.choice(KINDS)}", "city": rng.choice(CITIES)},
                "order": f"PO-{order}",
                "status": rng.choice(STATES),
                "due": _date(rng),
                "total": _amount(total),
            },
            indent=2,
        )
        for number, order, total in zip(numbers, orders, totals, strict=True)
    ]
    return _total_of(f"invoice for the order PO-{orders[0]}", records, totals, OTHER_OBJECTS, ",\n", rng)


def _total_of(asked: str, records: list[str], totals: list[int], others: int, joint: str, rng: random.Random) -> Quiz:
    """The question for the first of `totals`, which stands in the first record. others: totals that do not count."""
    needles = records[: others + 1]
    rng.shuffle(needles)
    frame = Frame(
        filler=tuple(records[others + 1 :]), joint=joint, calls=(_call("list_invoices", {"limit": len(records)}),)
    )
    question, excluded = f"What is the total of the {asked}?", tuple(_amount(total) for total in totals[1 : others + 1])
    expected = (_amount(totals[0]),)
    return Quiz(needles, question, "Answer with the amount only.", expected, excluded, (records[0],), frame)


def log_lines(tokens: int, rng: random.Random) -> Quiz:
    """A tool returned the lines of a log; the question asks which host reported the error of one job. Metric: the
    answer states the host and none of the hosts of four other errors.
    """
    count = _lines(tokens, 90)
    jobs = [f"job-{number:x}" for number in rng.sample(range(0x1000, 0xFFFF), count)]
    hosts = [f"node-{number}" for number in rng.sample(range(10, 99), 5)]
    failed = [
        f"{_time(rng)} ERROR {host} {job} step {rng.choice(STEPS)} failed with exit code {rng.randint(1, 9)}"
        for host, job in zip(hosts, jobs[:5], strict=True)
    ]
    calm = tuple(
        f"{_time(rng)} INFO {rng.choice(hosts)} {job} step {rng.choice(STEPS)} finished in {rng.randint(10, 9999)} ms"
        for job in jobs[5:]
    )
    frame = Frame(filler=calm, joint="\n", calls=(_call("read_log", {"lines": count}),))
    needles = rng.sample(failed, len(failed))
    question = f"On which host did {jobs[0]} fail?"
    return Quiz(needles, question, "Answer with the host only.", (hosts[0],), tuple(hosts[1:]), (failed[0],), frame)


def agent_loop(tokens: int, rng: random.Random) -> Quiz:
    """An agent first listed customers and then delayed orders; the question asks for the tracking number of the delayed
    order of one customer, whom the orders name only by the id of the first list. Metric: the answer states the number
    and none of the four other tracking numbers.
    """
    several = CUSTOMERS
    ids, tracking = rng.sample(range(1000, 9999), several), rng.sample(range(10**7, 10**8), several)
    customers = [
        json.dumps({"id": f"C{number}", "name": name, "city": rng.choice(CITIES), "since": _date(rng)})
        for name, number in zip(rng.sample(NAMES, several), ids, strict=True)
    ]
    orders = [
        json.dumps({"customer": f"C{number}", "items": rng.randint(1, 9), "due": _date(rng), "tracking": f"T{track}"})
        for number, track in zip(ids, tracking, strict=True)
    ]
    more = tuple(
        json.dumps(
            {"customer": f"C{rng.randint(1000, 9999)}", "items": 1, "due": _date(rng), "tracking": "none", "note": note}
        )
        for note in (f"order {n} is on time at {rng.choice(COMPANIES)} {rng.choice(KINDS)}" for n in range(tokens))
    )
    asked = json.loads(customers[0])["name"]
    first = _call("list_customers", {}, "call-1")
    result = {"role": "tool", "tool_call_id": "call-1", "content": "\n".join(rng.sample(customers, several))}
    frame = Frame(filler=more, joint="\n", calls=(first, result, _call("list_orders", {"status": "all"}, "call-2")))
    question = f"What is the tracking number of the order of {asked}?"
    hint = "Answer with the tracking number only, and call no further tool."
    others = tuple(f"T{track}" for track in tracking[1:])
    needles = rng.sample(orders, several)
    return Quiz(needles, question, hint, (f"T{tracking[0]}",), others, (customers[0], orders[0]), frame)


def _call(name: str, arguments: dict[str, Any], call_id: str = "call-1") -> Message:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


def _lines(tokens: int, characters: int) -> int:
    """More lines of `characters` characters than a document of `tokens` tokens holds."""
    return max(20, CHARACTERS_PER_TOKEN * tokens // characters)


def _date(rng: random.Random) -> str:
    return f"2026-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"


def _time(rng: random.Random) -> str:
    return f"2026-03-02 {rng.randint(0, 23):02}:{rng.randint(0, 59):02}:{rng.randint(0, 59):02}"


def _amount(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02}"
