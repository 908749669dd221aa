"""Real text for documents: the prose and the functions of the Python standard library that runs this program.

Another version of Python has slightly other texts, so prompts repeat exactly on the same version only.
"""

import ast
import random
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import dedent

from demo_models.documents import words

NAMES = ("Yasmin", "Bruno", "Katja", "Dmitri", "Ingrid", "Kofi", "Leila", "Mateo", "Nadia", "Omar", "Priya", "Rashid")


CHARACTERS_PER_TOKEN = 8
"""More characters than a token has on average in any tokenizer, so that a text of this length is long enough."""

_PROSE_LENGTHS = range(120, 600)
_CODE_LENGTHS = range(150, 1100)

MODULES = words(
    """argparse ast asyncio/events asyncio/queues asyncio/streams base64 bdb bz2 calendar cmd codecs
    collections/__init__ concurrent/futures/_base configparser contextlib copy csv datetime decimal difflib dis
    doctest email/_policybase email/charset email/contentmanager email/generator email/header email/message
    email/policy filecmp fileinput fractions ftplib functools gettext gzip heapq html/parser http/client
    http/cookiejar http/cookies http/server imaplib inspect ipaddress json/decoder json/encoder locale
    logging/__init__ logging/config logging/handlers mailbox mimetypes multiprocessing/managers multiprocessing/pool
    netrc nntplib optparse os pathlib pdb pickle pickletools plistlib poplib posixpath pprint profile queue random
    sched selectors shelve shlex shutil smtplib socket socketserver sqlite3/dbapi2 ssl statistics string subprocess
    tarfile tempfile textwrap threading timeit tokenize trace traceback typing unittest/case unittest/loader
    unittest/mock unittest/suite urllib/parse urllib/request urllib/robotparser uuid warnings wave weakref
    webbrowser xml/dom/minidom xml/sax/handler xmlrpc/client xmlrpc/server zipfile"""
)
"""Modules with much text, by their path below the standard library. Those that a version lacks are left out."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function or a method. source: without the indentation of its class. node: its syntax tree."""

    name: str
    source: str
    node: ast.FunctionDef

    @property
    def signature(self) -> str:
        """The lines before the body."""
        return "\n".join(self.source.splitlines()[: self.node.body[0].lineno - self.node.lineno])

    @property
    def bare(self) -> str:
        """The source without its docstring."""
        if ast.get_docstring(self.node) is None:
            return self.source
        lines, text = self.source.splitlines(), self.node.body[0]
        after = (text.end_lineno or text.lineno) - self.node.lineno + 1
        return "\n".join([self.signature, *lines[after:]])


@cache
def paragraphs() -> tuple[str, ...]:
    """Paragraphs of prose from docstrings, each on one line, each once, in the order of `MODULES`."""
    found = []
    for _, tree in _trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                found += [" ".join(part.split()) for part in re.split(r"\n\s*\n", ast.get_docstring(node) or "")]
    return tuple(dict.fromkeys(part for part in found if _is_prose(part)))


@cache
def functions() -> tuple[Function, ...]:
    """Functions and methods whose name is that of no other one, in the order of `MODULES`."""
    found = []
    for source, tree in _trees():
        lines = source.splitlines(keepends=True)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                found.append(
                    Function(node.name, dedent("".join(lines[node.lineno - 1 : node.end_lineno])).rstrip(), node)
                )
    names = Counter(function.name for function in found)
    return tuple(f for f in found if names[f.name] == 1 and len(f.source) in _CODE_LENGTHS and len(f.name) > 3)


def some_prose(tokens: int, rng: random.Random, without: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Different paragraphs in random order, for a document of `tokens` tokens. without: paragraphs to leave out."""
    return _enough([part for part in paragraphs() if part not in without], tokens, rng)


def some_code(
    tokens: int, rng: random.Random, without: tuple[Function, ...] = (), *, documented: bool = True
) -> tuple[str, ...]:
    """Different functions in random order, for a document of `tokens` tokens. without: functions to leave out.
    documented: with their docstrings.
    """
    names = {function.name for function in without}
    return _enough([f.source if documented else f.bare for f in functions() if f.name not in names], tokens, rng)


def _enough(pool: list[str], tokens: int, rng: random.Random) -> tuple[str, ...]:
    rng.shuffle(pool)
    length = 0
    for count, part in enumerate(pool, 1):
        length += len(part)
        if length > CHARACTERS_PER_TOKEN * tokens:
            return tuple(pool[:count])
    return tuple(pool)


@cache
def _trees() -> tuple[tuple[str, ast.Module], ...]:
    return tuple((source, ast.parse(source)) for source in _sources())


def _sources() -> Iterator[str]:
    library = Path(sysconfig.get_paths()["stdlib"])
    for name in MODULES:
        file = library / f"{name}.py"
        if file.is_file():
            yield file.read_text(encoding="utf-8")


def _is_prose(part: str) -> bool:
    return (
        len(part) in _PROSE_LENGTHS
        and part[0].isupper()
        and part.endswith(".")
        and sum(c.isalpha() or c == " " for c in part) > 0.93 * len(part)
    )
