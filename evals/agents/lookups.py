"""Conversations whose answers are short: a fact of an earlier result, a value that was corrected, and the next call."""

import json
import random
from collections.abc import Iterator
from itertools import product
from typing import Any

from demo_models.documents import words
from evals.agents.conversation import Conversation, Turn, called, said
from evals.tasks.metrics import Scheme
from evals.tasks.quiz import Message, Quiz
from evals.tasks.source_texts import NAMES, some_prose
from evals.tasks.tool_results import COMPANIES, KINDS

BACK = 3
"""What is asked stands so many results before the latest one."""
OTHERS = 4
"""Other values of the same result, which an answer must not state."""
SHORT_ANSWER, CALL_ANSWER = 32, 96

MATERIALS = words("brass cedar copper cotton glass iron linen maple nickel rubber steel zinc")
THINGS = words("bolt bracket clamp gasket handle hinge hook lever pulley spring valve washer")
QUANTITIES = (
    *("budget", "badge number", "extension", "invoice number", "locker code", "mileage", "order number", "quota"),
    *("room number", "seat number", "serial number", "ticket number"),
)

_USES_TOOLS = "You are an agent that works with tools. Take all values from the results of the tools."


def fact(turns: int, tokens: int, rng: random.Random) -> Conversation:
    """An agent opens one shelf after the other; the question asks for the bin of an item that the third result before
    the latest one lists. Metric: the answer states the bin and none of four other bins of that result.
    """
    rows = _items(rng)
    shelves = [[next(rows) for _ in range(1 + OTHERS)] for _ in range(turns)]
    made = []
    for number, shelf in enumerate(shelves):
        asked = _asked_in(number)
        (item, bin_name), *others = shelves[asked]
        question = f"in which bin is the {item} of shelf {asked + 1}?"
        quiz = Quiz(
            [],
            question,
            "Answer with the bin only, and call no further tool.",
            (bin_name,),
            tuple(other for _, other in others),
            (_item_line(item, bin_name),),
        )
        request = f"Open shelf {number + 1}. Then tell me: {question} {quiz.hint}"
        needles = [_item_line(*row) for row in shelf]
        rng.shuffle(needles)
        made.append(Turn(request, ("open_shelf", {"shelf": number + 1}), needles, quiz, said(f"{bin_name}.")))
    return Conversation(_USES_TOOLS, made, (_item_line(*row) for row in rows), "\n", SHORT_ANSWER)


def correction(turns: int, tokens: int, rng: random.Random) -> Conversation:
    """An agent reads notes, day after day; the question asks for a value of the third day before the latest one, which
    was corrected on the day before the latest one: in its notes, or in every second turn by the user. Metric: the
    answer states the new value and not the old one.
    """
    subjects = rng.sample([f"the {quantity} of {name}" for name, quantity in product(NAMES, QUANTITIES)], 4 * turns)
    values = rng.sample(range(1000, 9999), 2 * 4 * turns)
    told = [(subject, values[2 * at], values[2 * at + 1]) for at, subject in enumerate(subjects)]
    days = [told[4 * number : 4 * number + 4] for number in range(turns)]
    notes = [[_states(subject, old) for subject, old, _ in day] for day in days]
    spoken = [""] * turns
    for number in range(BACK, turns):
        subject, _, new = days[number - BACK][0]
        if number % 2:
            spoken[number - 1] = f"By the way, {subject} is {new}, no longer what the notes say. "
        else:
            notes[number - 1].append(f"Correction: {subject} is {new}.")
    made = []
    for number in range(turns):
        asked = _asked_in(number)
        subject, old, new = days[asked][0]
        corrected = number >= BACK
        evidence = f"{subject} is {new}" if corrected else _states(subject, old)
        right = str(new if corrected else old)
        hint = "Answer with the number only, and call no further tool."
        question = f"what is {subject} now?"
        quiz = Quiz([], question, hint, (right,), (str(old),) if corrected else (), (evidence,))
        request = f"{spoken[number]}Read the notes of day {number + 1}. Then tell me: {question} {hint}"
        made.append(Turn(request, ("read_notes", {"day": number + 1}), notes[number], quiz, said(f"{right}.")))
    return Conversation(_USES_TOOLS, made, iter(some_prose(tokens, rng)), "\n", SHORT_ANSWER)


def call(turns: int, tokens: int, rng: random.Random) -> Conversation:
    """An agent lists orders page by page and ships one in each turn: it must call `ship_order` with the id of the order
    of a customer, which the third result before the latest one has, and with the id of a carrier from the first
    result. Metric: the answer calls this tool with these arguments and no other ones.
    """
    carriers = dict(zip(rng.sample(COMPANIES, len(COMPANIES)), _ids("C", 3, rng), strict=False))
    rows = _orders(rng)
    pages = [[next(rows) for _ in range(1 + OTHERS)] for _ in range(turns)]
    listed = [json.dumps({"carrier": name, "id": number}) for name, number in carriers.items()]
    made = []
    for number, page in enumerate(pages):
        asked = _asked_in(number)
        customer, order = pages[asked][0]
        carrier = rng.choice(COMPANIES)
        arguments = {"order": order, "carrier": carriers[carrier]}
        question = f"call `ship_order` for the order of {customer} from page {asked + 1} with the carrier {carrier}."
        evidence = (_order_line(customer, order), json.dumps({"carrier": carrier, "id": carriers[carrier]}))
        wanted = json.dumps({"name": "ship_order", "arguments": arguments})
        quiz = Quiz([], question, "", (wanted,), (), evidence, metric=calls_right)
        needles = [_order_line(*row) for row in page]
        rng.shuffle(needles)
        made.append(
            Turn(
                f"Read page {number + 1}. Then {question}",
                ("list_orders", {"page": number + 1}),
                needles if number else [*listed, *needles],
                quiz,
                _shipped(arguments, f"ship-{number}"),
            )
        )
    return Conversation(_CALLS, made, (_order_line(*row) for row in rows), "\n", CALL_ANSWER)


_CALLS = f"""{_USES_TOOLS} Your tools are:
{{"name": "list_orders", "arguments": {{"page": number}}}}: lists the orders of a page; page 1 also has the carriers.
{{"name": "ship_order", "arguments": {{"order": id, "carrier": id}}}}: ships an order (O-12345) with a carrier (C-123).
Call a tool by a JSON object of this form, and write nothing else."""


def calls_right(quiz: Scheme, answer: str) -> float:
    """1 if the first call of the answer has the tool and the arguments of the expected one, else 0."""
    wanted = json.loads(quiz.expected[0])
    found = first_call(answer)
    same = found is not None and found[0] == wanted["name"] and found[1] == wanted["arguments"]
    return float(same)


def first_call(answer: str) -> tuple[str, dict[str, Any]] | None:
    """Name and arguments of the first JSON object that calls a tool, wherever it stands; None without one."""
    decoder, at = json.JSONDecoder(), answer.find("{")
    while at >= 0:
        try:
            found, _ = decoder.raw_decode(answer, at)
        except ValueError:
            found = None
        if isinstance(found, dict) and isinstance(found.get("name"), str):
            arguments = found.get("arguments")
            return found["name"], arguments if isinstance(arguments, dict) else {}
        at = answer.find("{", at + 1)
    return None


def _asked_in(number: int) -> int:
    """The result that a turn asks about: its own one while there are too few."""
    return number - BACK if number >= BACK else number


def _ids(letter: str, digits: int, rng: random.Random) -> Iterator[str]:
    """Different ids in random order."""
    numbers = range(10 ** (digits - 1), 10**digits)
    return (f"{letter}-{number}" for number in rng.sample(numbers, len(numbers)))


def _items(rng: random.Random) -> Iterator[tuple[str, str]]:
    """Items with their bins; no two are alike."""
    names = [f"{material} {thing} M{size}" for size, material, thing in product(range(3, 13), MATERIALS, THINGS)]
    rng.shuffle(names)
    return zip(names, _ids("B", 4, rng), strict=False)


def _item_line(item: str, bin_name: str) -> str:
    return json.dumps({"item": item, "bin": bin_name})


def _states(subject: str, value: int) -> str:
    return f"{subject[0].upper()}{subject[1:]} is {value}."


def _orders(rng: random.Random) -> Iterator[tuple[str, str]]:
    """Customers with the id of their order; no two are alike."""
    names = [f"{name} {kind} {place}" for place, name, kind in product(range(1, 21), NAMES, KINDS)]
    rng.shuffle(names)
    return zip(names, _ids("O", 5, rng), strict=False)


def _order_line(customer: str, order: str) -> str:
    return json.dumps({"customer": customer, "order": order})


def _shipped(arguments: dict[str, Any], call_id: str) -> tuple[Message, ...]:
    result = {"role": "tool", "tool_call_id": call_id, "content": json.dumps({"shipped": arguments["order"]})}
    return called("ship_order", arguments, call_id), result, {"role": "assistant", "content": "It is shipped."}
