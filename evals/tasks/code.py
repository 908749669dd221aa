"""Questions about the code of real functions of the standard library; one of them is RepoQA's."""

import ast
import random
from functools import cache

from evals.tasks.quiz import Frame, Quiz
from evals.tasks.source_texts import Function, functions, some_code

INTRODUCTION = "Below are some Python functions. Read them, then answer the question at the end."
OTHER_ERRORS, OTHER_FUNCTIONS = 3, 4
SHORTEST = 6
"""Words of a description, at least."""
SHORT = 500
"""Characters of a function that stands beside the one that is asked for, at most."""
CONSTANTS = ("None", "True", "False")


def default_value(tokens: int, rng: random.Random) -> Quiz:
    """The question asks for the default of one parameter of one of many functions. Metric: the answer states it, and no
    other default of that function.
    """
    function, defaults = rng.choice(_with_defaults())
    asked = rng.choice([name for name, value in defaults.items() if value not in ("None", "")])
    value = defaults[asked]
    others = {other for other in defaults.values() if other not in (value, "")}
    if value in CONSTANTS:
        others |= set(CONSTANTS) - {value}
    question = f"What is the default value of the parameter `{asked}` of the function `{function.name}`?"
    evidence = (function.signature,)
    return _about(function, question, "Answer with the value only.", value, others, evidence, (), tokens, rng)


def raised_error(tokens: int, rng: random.Random) -> Quiz:
    """The question asks which exception one of many functions raises. Metric: the answer states the exception, and none
    of three others that other functions of the text raise.
    """
    function, error = rng.choice(_that_raise())
    others: dict[str, Function] = {}
    for other, name in rng.sample(_that_raise(), len(_that_raise())):
        if name != error and len(others) < OTHER_ERRORS and len(other.source) <= SHORT:
            others.setdefault(name, other)
    question = f"Which exception does the function `{function.name}` raise?"
    hint = "Answer with the name of the exception only."
    raised = next(node for node in ast.walk(function.node) if isinstance(node, ast.Raise))
    evidence = (function.signature, _with_line_before(function, raised))
    return _about(function, question, hint, error, set(others), evidence, tuple(others.values()), tokens, rng)


def returned_value(tokens: int, rng: random.Random) -> Quiz:
    """The question asks for the constant that the last line of one of many functions returns. Metric: the answer states
    the constant, and none of None, True and False besides it.
    """
    function, value = rng.choice(_that_return_a_constant())
    question = f"What does the function `{function.name}` return if none of its earlier return statements is reached?"
    others = set(CONSTANTS) - {value}
    evidence = (function.signature, _with_line_before(function, function.node.body[-1]))
    hint = "Answer with the returned value only."
    return _about(function, question, hint, value, others, evidence, (), tokens, rng)


def repoqa(tokens: int, rng: random.Random) -> Quiz:
    """As RepoQA's needle function search (arXiv 2406.06025): a description, the first sentence of a docstring, asks for
    one of many functions, which are shown without docstrings. In RepoQA a model writes the description, the answer is
    the whole function, and repositories of five languages are shown. Metric: the answer names the function, and none of
    four others that have docstrings.
    """
    several = rng.sample(_described(), 1 + OTHER_FUNCTIONS)
    names = [function.name for function, _ in several]
    frame = Frame(
        INTRODUCTION,
        some_code(tokens, rng, without=tuple(function for function, _ in several), documented=False),
        joint="\n\n",
        limit=32,
    )
    (function, sentence), question = several[0], 'Which of the functions is described by "{}"?'
    needles = [one.bare for one, _ in rng.sample(several, len(several))]
    hint = "Answer with the name of the function only."
    evidence = (function.signature,)
    return Quiz(needles, question.format(sentence), hint, (names[0],), tuple(names[1:]), evidence, frame)


def _about(
    function: Function,
    question: str,
    hint: str,
    expected: str,
    excluded: set[str],
    evidence: tuple[str, ...],
    others: tuple[Function, ...],
    tokens: int,
    rng: random.Random,
) -> Quiz:
    needles = [part.source for part in (function, *others)]
    rng.shuffle(needles)
    filler = some_code(tokens, rng, without=(function, *others))
    frame = Frame(INTRODUCTION, filler, joint="\n\n")
    return Quiz(needles, question, hint, (expected,), tuple(sorted(excluded)), evidence, frame)


def _with_line_before(function: Function, statement: ast.stmt) -> str:
    """A statement and the line before it, which makes it unique in most documents."""
    lines, first = function.source.splitlines(), statement.lineno - function.node.lineno
    return "\n".join(lines[first - 1 : (statement.end_lineno or statement.lineno) - function.node.lineno + 1])


@cache
def _described() -> list[tuple[Function, str]]:
    """Functions with the first sentence of their docstrings, which is that of no other and does not name them."""
    found: dict[str, list[Function]] = {}
    for function in functions():
        sentence = " ".join((ast.get_docstring(function.node) or "").split("\n\n")[0].split()).split(". ")[0]
        words = sentence.lower().split()
        if len(function.node.body) > 2 and len(words) >= SHORTEST and function.name.lower() not in words:
            found.setdefault(sentence, []).append(function)
    return [(same[0], f"{sentence.rstrip('.')}.") for sentence, same in found.items() if len(same) == 1]


@cache
def _with_defaults() -> list[tuple[Function, dict[str, str]]]:
    """Functions with at least two constant defaults, one of them not None, and these as the code writes them."""
    found = []
    for function in functions():
        arguments = function.node.args
        named = zip(reversed([*arguments.posonlyargs, *arguments.args]), reversed(arguments.defaults), strict=False)
        pairs = [*named, *((a, d) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d)]
        defaults = {a.arg: _constant(d) for a, d in pairs}
        values = [value for value in defaults.values() if value]
        if len(values) == len(defaults) >= 2 and any(value != "None" for value in values):
            found.append((function, defaults))
    return found


@cache
def _that_raise() -> list[tuple[Function, str]]:
    """Functions that raise exactly one exception and name no other, with its name."""
    found = []
    for function in functions():
        nodes = list(ast.walk(function.node))
        raised = {_error_name(node.exc) for node in nodes if isinstance(node, ast.Raise)}
        named = {node.id for node in nodes if isinstance(node, ast.Name) and node.id.endswith(("Error", "Exception"))}
        if len(raised) == 1 and (error := raised.pop()) and named == {error}:
            found.append((function, error))
    return found


@cache
def _that_return_a_constant() -> list[tuple[Function, str]]:
    """Functions with several returns, whose last statement returns a constant."""
    found = []
    for function in functions():
        returns = [node for node in ast.walk(function.node) if isinstance(node, ast.Return)]
        last = function.node.body[-1]
        if len(returns) > 1 and isinstance(last, ast.Return) and last.value and (value := _constant(last.value)):
            found.append((function, value))
    return found


def _error_name(raised: ast.expr | None) -> str:
    """`ValueError` of `raise ValueError` and `raise ValueError(...)`; empty for anything else."""
    name = raised.func if isinstance(raised, ast.Call) else raised
    return name.id if isinstance(name, ast.Name) and name.id.endswith("Error") else ""


def _constant(node: ast.expr) -> str:
    """The constant as an answer states it, a text without its quotation marks; empty for other expressions and for
    texts that are not a word.
    """
    if not isinstance(node, ast.Constant):
        return ""
    text = str(node.value)
    return text if text and (not isinstance(node.value, str | bytes) or text.replace("-", "").isalnum()) else ""
