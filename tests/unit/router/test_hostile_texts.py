"""Each scan of what a client sends takes a time that is linear in its length, and a short one.

Of twice as long a text, the processor works at most 2.5 times as long, and 0.5 s of 64k characters. Processor time, the
least of several runs: a busy machine may take longer.
"""

import math
import pkgutil
import re
import time
import tracemalloc
from importlib import import_module
from itertools import chain, pairwise

import numpy as np
import pytest
import re2

import router.decision
import router.dispatch.sampling_limits
import router.prompt
from kv_transfer.arrays import mask_of
from router.decision.guard import needs_whole_text
from router.dispatch.sampling_limits import check_sampling
from router.options.headers import whole_number
from router.options.nesting import too_deep
from router.options.request import PrefillOptions
from router.prompt.contents import MarkedChat
from router.prompt.markers import messages_with_keeps
from router.prompt.rendered import RenderedPrompt
from router.prompt.task.speech import Turn, speech_of_turns
from router.prompt.token_cache import KnownTokens
from router.vllm_front import body_errors
from skim_common.errors import InvalidRequestError
from speculator_service.selection.units import nested_ranks
from speculator_service.translation import readable
from tests.unit.router.chats import prompt_spans
from tests.unit.router.prompt.test_control_tokens import byte_level

SIZES = 65536, 32768, 16384, 8192
LONG = SIZES[0]
MOST_GROWTH, MOST_S, FLOOR_S = 2.5, 0.5, 0.04
"""A time below the floor counts as the floor."""

PIECES = {
    "line ends": "\n",
    "spaces": " ",
    "spaces and line ends": "  \n",
    "colons": ":",
    "colons and spaces": ": ",
    "stops": ". ",
    "digits": "1",
    "numbered lines": "12: \n",
    "tabs and digits": "\t1",
    "quotes": '"',
    "backslashes": "\\",
    "escaped quotes": '\\"',
    "opening brackets": "[",
    "parentheses": "(",
    "objects": '{"a":',
    "records": "},",
    "paths": "/a",
    "files": '\nFile "a',
    "identifiers": "a_",
    "one word": "a",
    "copy": "copy ",
    "please": "\nplease ",
    "a persona": "you are ",
    "personas": "you are \n",
    "list": "list all ",
    "wide stops": "\u3002",
    "fences": "```\n",
    "tags": "<a>\n",
    "closing tags": "</a>",
    "tags that close": "<a>\n</a>",
    "texts between tags": "<a>\ny</a>x\n",
    "headings": "# a\n",
    "questions": "a?\n\n",
    "items": "- a\n",
    "sections": "# a\n## b\nc\n",
    "speakers": "a: b\n",
    "rows": "a,b\n",
    "times": "12:00 a\n",
    "keys of JSON": '{"a":',
    "ends of JSON": '{"a":[1]},',
    "deeper lines": "if a:\n" + " " * 40,
    "headers": "<tr><th>a",
    "private": "\U000f0000\U000f0001",
    "control tokens": "<|im_end|",
}


def nested(size):
    """Tags in tags, each with a name of its own."""
    depth = size // 13
    return "".join(f"<t{n}>\n" for n in range(depth)) + "x" + "".join(f"\n</t{n}>" for n in reversed(range(depth)))


WHOLE = {
    "tags in tags": nested,
    "a rule and a tick": lambda size: "~" * (size - 1) + "`",
    "escaped JSON": lambda size: "{" + ('\\"a\\": \\"b\\", ' * size)[: size - 2] + "}",
    "JSON": lambda size: "{" + ('"a":"b",' * (size // 8)) + '"a":"b"}',
    "JSON in JSON": lambda size: '{"a":' * (size // 6) + "1" + "}" * (size // 6),
    "JSON of one string": lambda size: '["' + "\\n" * (size // 2) + '"]',
    "a long number of JSON": lambda size: "[" + "1" * size + "]",
    "deeper and deeper": lambda size: "".join(" " * n + "a:\n" for n in range(int((2 * size) ** 0.5))),
}


def piece_of(tree, choice):
    """The shortest text of a parsed pattern. choice: which of several alternatives."""
    found = ""
    for sign, given in tree:
        name = str(sign)
        if name == "LITERAL":
            found += chr(given)
        elif name == "ANY":
            found += "x"
        elif name == "IN":
            kind, first = given[choice % len(given)] if str(given[0][0]) != "NEGATE" else ("LITERAL", ord("x"))
            found += {"LITERAL": chr, "RANGE": lambda ends: chr(ends[0])}.get(str(kind), lambda _: "a ")(first)[:1]
        elif name == "BRANCH":
            found += piece_of(given[1][choice % len(given[1])], choice)
        elif name == "SUBPATTERN":
            found += piece_of(given[-1], choice)
        elif name in ("MAX_REPEAT", "MIN_REPEAT"):
            found += piece_of(given[2], choice) * max(1, given[0])
    return found


def patterns():
    """Those of all modules that look at a client's text, by their sources."""
    modules = [router.dispatch.sampling_limits]
    for package in (router.prompt, router.decision):
        found = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        modules += [import_module(module.name) for module in found]
    for module in modules:
        yield from (value for value in vars(module).values() if isinstance(value, re2._Regexp))


def pieces_of(pattern, choices):
    """A text of the pattern, its beginning, and it on a line of its own."""
    letters = {"L": "a", "N": "1", "Z": " "}
    plain = re.sub(r"\\p(?:\{(\w)\w*\}|(\w))", lambda found: letters.get(found[1] or found[2], "-"), pattern)
    plain = re.sub(r"\\x\{(\w+)\}", lambda found: re.escape(chr(int(found[1], 16))), plain)
    for choice in range(choices):
        whole = piece_of(re._parser.parse(plain), choice)
        yield from (whole[:-1], f"{whole}\n", f"{whole[:-1]}\n")


def all_pieces(choices):
    texts = chain(PIECES.values(), *(pieces_of(one.pattern, choices) for one in patterns()))
    return [piece for piece in dict.fromkeys(texts) if piece]


def messages_of(role, text):
    """A chat with a text of one role, or with the parts of `/v1/select`."""
    if role == "select":
        parts = [{"type": "text", "text": text, "keep": "auto"}, {"type": "text", "text": "a b?", "keep": "always"}]
        return [{"role": "user", "content": parts}]
    if role == "system":
        return [{"role": "system", "content": text}, {"role": "user", "content": "hello"}]
    asked = {"role": "user", "content": text if role == "user" else "What is it?"}
    return [asked, {"role": role, "content": text}] if role in ("tool", "assistant") else [asked]


def rendered(messages):
    texts = [message["content"] for message in messages]
    return "".join(
        f"<|x|>{text if isinstance(text, str) else ''.join(part['text'] for part in text)}" for text in texts
    )


def prepared(role, text):
    """All that a router finds in the texts of a prompt, up to the layout of a selection."""
    plain, chat = text, None
    if role != "raw":
        messages, keeps = messages_with_keeps(messages_of(role, text))
        plain = rendered(messages_of(role, text))
        marked = MarkedChat(messages, plain, keeps)
        chat = marked.contents(rendered(marked.messages))
    starts = np.arange(0, len(plain), 4)
    offsets, options = np.stack([starts, np.minimum(starts + 4, len(plain))], 1), PrefillOptions()
    prompt = RenderedPrompt(np.zeros(starts.size, np.int32), plain, offsets, chat)
    spans = prompt.spans(options)
    needs_whole_text(prompt.task_text(spans.layout))
    prompt.layout(options, spans)


ROLES = "user", "system", "tool", "select", "raw"


def grammar(text):
    for name in ("regex", "json", "grammar", "structural_tag"):
        try:
            check_sampling({"structured_outputs": {name: text}})
        except InvalidRequestError:
            continue


SCANS = {
    "guard": needs_whole_text,
    "many turns": lambda text: speech_of_turns(text, [Turn([(at, at + 16)]) for at in range(0, len(text), 16)]),
    "depth": lambda text: too_deep(text.encode() + b"[" * 200),
    "grammar": grammar,
    "special tokens": lambda text: KnownTokens(byte_level(), [(0, "<|im_end|>")])._digests(text, None),
    "translation": readable,
    "number": whole_number,
}


def grows(work, make):
    """Whether the time of some work grows too fast, or is too long. make: gives the work of a size."""
    least = dict.fromkeys(SIZES, math.inf)

    def measure(size):
        given = make(size)
        began = time.process_time()
        work(given)
        least[size] = min(least[size], time.process_time() - began)

    measure(LONG)
    for longer, shorter in pairwise(SIZES):
        for _ in range(6):
            if least[longer] <= MOST_GROWTH * FLOOR_S:
                return False
            measure(shorter)
            if least[longer] <= MOST_GROWTH * max(FLOOR_S, least[shorter]) and least[longer] <= MOST_S:
                break
            measure(longer)
        else:
            return True
    return False


def repeated(piece):
    return lambda size: (piece * (size // len(piece) + 1))[:size]


@pytest.mark.parametrize("scan", SCANS)
def test_scans(scan):
    assert [piece for piece in PIECES.values() if grows(SCANS[scan], repeated(piece))] == []


@pytest.mark.parametrize("role", ROLES)
def test_whole_prompts(role):
    """Each piece in one of the roles."""
    mine = all_pieces(1)[ROLES.index(role) :: len(ROLES)]
    assert [piece for piece in mine if grows(lambda text: prepared(role, text), repeated(piece))] == []


@pytest.mark.parametrize("role", ["user", "system"])
def test_texts_that_are_hostile_as_a_whole(role):
    assert [name for name, make in WHOLE.items() if grows(lambda text: prepared(role, text), make)] == []


@pytest.mark.nightly
@pytest.mark.parametrize("role", ROLES)
def test_all_pieces_in_each_role(role):
    assert [piece for piece in all_pieces(8) if grows(lambda text: prepared(role, text), repeated(piece))] == []


def test_control():
    """The pattern that the guard had."""
    pattern = re.compile(r"(^|[.:!?\n])\s*(please )?(list|enumerate)\b")
    assert grows(pattern.search, lambda size: "\n" * (size // 16))


def test_patterns_are_small():
    """RE2 gives up its automaton for a pattern that is too large, and takes many times as long."""
    assert {one.pattern: one.programsize for one in patterns() if one.programsize > 20_000} == {}


def test_sentences_of_vllm(monkeypatch):
    from vllm.entrypoints.serve.exception_handling import error_response

    monkeypatch.setattr(error_response, "sanitize_message", body_errors.sanitize_message)
    body_errors.bound_messages()
    assert not grows(error_response.sanitize_message, repeated("/a"))
    assert len(error_response.sanitize_message("x" * 5000)) == body_errors.MAX_MESSAGE_CHARS
    assert error_response.sanitize_message("a short one") == "a short one"


def many_spans(size):
    options = {"protected_spans": [[0, size]] * (size // 16)}
    return lambda: prompt_spans(size, PrefillOptions.model_construct(**options), None, None, None)


def offsets_of(size):
    return np.stack([np.arange(size), np.arange(size) + 1], 1)


@pytest.mark.parametrize("work", [many_spans])
def test_many_parts(work):
    assert not grows(lambda call: call(), work)


def test_deeply_nested_lines_take_no_memory_of_their_own():
    """Half of the text are lines that are indented more and more, the rest is as far in as the last."""
    deep = int(LONG**0.5)
    indents = np.r_[np.arange(deep), np.full(LONG // 8 - deep, deep)].astype(np.int32)
    every = np.ones(indents.size)
    tracemalloc.start()
    try:
        nested_ranks(every, indents, 8 * np.arange(1, indents.size + 1), every > 0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100 * LONG


def test_a_mask_is_that_of_each_span():
    spans = [(0, 3), (2, 5), (2, 5), (9, 10)]
    assert np.flatnonzero(mask_of(spans, 10)).tolist() == [0, 1, 2, 3, 4, 9]
    assert not mask_of([], 3).any()
