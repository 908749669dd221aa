"""Questions about the source of Python's standard library, with answers from its syntax tree.

A passage is consecutive lines of one module. Its facts are the default value or the name of a parameter, the value of a
constant, the base of a class, and the only exception that a function raises or attribute that it returns. The modules
are those of the Python that runs this, so another version of Python gives other passages.
"""

import ast
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from benchmarks.documents import MODULES, source
from evals.quiz import Count, Quiz

HINT = "Answer with the value only, without explanation."
TRIES = 100
"""Passages that are tried before it is an error that none has enough facts."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Fact:
    """about: the name that the question asks about. line: the number of the line that answers it, from 1 on."""

    about: str
    line: int
    question: str
    value: str


def make_passage(tokens: int, count: int, rng: random.Random, tokens_of: Count) -> tuple[str, list[Quiz]]:
    """A passage of at most `tokens` tokens, and `count` questions about different names of it.

    Raises ValueError if no passage of this length has so many facts.
    """
    for _ in range(TRIES):
        lines, found = _module(rng.choice(MODULES))
        first = rng.randrange(len(lines))
        last = _end(lines, first, tokens, tokens_of)
        known = [fact for fact in found if first < fact.line <= last]
        asked = list({fact.about: fact for fact in rng.sample(known, len(known))}.values())
        if last < len(lines) and len(asked) >= count:
            return "\n".join(lines[first:last]), [_quiz(fact, lines) for fact in rng.sample(asked, count)]
    raise ValueError(f"no passage of {tokens} tokens answers {count} questions: ask for longer prompts")


def _quiz(fact: Fact, lines: tuple[str, ...]) -> Quiz:
    evidence = lines[fact.line - 1].strip()
    return Quiz([], fact.question, HINT, (fact.value,), evidence=(evidence,))


def _end(lines: tuple[str, ...], first: int, tokens: int, tokens_of: Count) -> int:
    """The number of leading lines after which a passage that begins after `first` lines has at most `tokens` tokens."""
    low, high = first, min(len(lines), first + tokens // 4)  # a line has about ten tokens
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if tokens_of("\n".join(lines[first:middle])) <= tokens else (low, middle - 1)
    return low


@cache
def _module(name: str) -> tuple[tuple[str, ...], tuple[Fact, ...]]:
    """The lines of a module of the standard library, and its facts."""
    text = source(name)
    lines = tuple(text.splitlines())
    tree = ast.parse(text)
    # Evidence is found by its text, so a line that occurs twice is none. A name defined twice has no one answer.
    occurs = Counter(line.strip() for line in lines)
    defined = Counter(name for node in ast.walk(tree) for name in _defined(node))
    unique = (fact for fact in facts(tree) if occurs[lines[fact.line - 1].strip()] == 1 and defined[fact.about] < 2)
    return lines, tuple(unique)


def facts(tree: ast.AST) -> list[Fact]:
    """All facts of a module."""
    return [fact for node in ast.walk(tree) for fact in _facts(node)]


def _defined(node: ast.AST) -> list[str]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [node.name]
        case ast.Assign():
            return [target.id for target in node.targets if isinstance(target, ast.Name)]
    return []


def _facts(node: ast.AST) -> Iterator[Fact]:
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=value)) if _is_telling(value):
            yield Fact(name, node.lineno, f"Which value is assigned to `{name}`?", str(value))
        case ast.ClassDef(name=name, bases=[ast.Name(id=base)]) if base != "object":
            yield Fact(name, node.lineno, f"Which class does `{name}` inherit from?", base)
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield from _facts_of(node)


def _facts_of(function: Function) -> Iterator[Fact]:
    """At most one fact of each kind."""
    name, arguments = function.name, function.args
    in_order = [*arguments.posonlyargs, *arguments.args]
    for argument, default in zip(reversed(in_order), reversed(arguments.defaults), strict=False):
        if isinstance(default, ast.Constant) and _is_telling(default.value):
            question = f"What is the default value of the parameter `{argument.arg}` of `{name}`?"
            yield Fact(name, default.lineno, question, str(default.value))
            break
    else:
        if len(in_order) > 2:
            last = in_order[-1]
            yield Fact(name, last.lineno, f"What is the name of the last parameter of `{name}`?", last.arg)
    inside = list(ast.walk(function))
    match [node for node in inside if isinstance(node, ast.Raise)]:
        case [ast.Raise(exc=ast.Call(func=ast.Name(id=error))) as raised]:
            yield Fact(name, raised.lineno, f"Which exception does `{name}` raise?", error)
    match [node for node in inside if isinstance(node, ast.Return)]:
        case [ast.Return(value=ast.Attribute(value=ast.Name(id="self"), attr=value)) as returned]:
            yield Fact(name, returned.lineno, f"Which attribute of `self` does `{name}` return?", value)


def _is_telling(value: object) -> bool:
    """Whether a constant is unlikely to be guessed: a number of two digits or more, or a word."""
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) >= 10
    return isinstance(value, str) and value.isidentifier()
