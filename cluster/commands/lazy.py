"""Command groups whose commands are imported only when they are used."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup


def lazy_group(panels: Mapping[str | None, Mapping[str, str]]) -> type[TyperGroup]:
    """A group class for `typer.Typer(cls=...)`, with further commands after the group's own.

    panels: by a heading in --help (None: the usual one), the place of each command's function or `typer.Typer`, as
    "module:name", by the command's name.
    """
    commands = {name: (place, panel) for panel, named in panels.items() for name, place in named.items()}

    class LazyGroup(TyperGroup):
        def list_commands(self, ctx: Any) -> list[str]:
            return [*super().list_commands(ctx), *commands]

        def get_command(self, ctx: Any, name: str) -> Any:
            return _load(name, *commands[name]) if name in commands else super().get_command(ctx, name)

    return LazyGroup


def _load(name: str, place: str, panel: str | None) -> Any:
    """The click command of the function or the `typer.Typer` at `place`."""
    module, _, attribute = place.partition(":")
    target = getattr(import_module(module), attribute)
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    if isinstance(target, typer.Typer):
        app.add_typer(target, name=name, rich_help_panel=panel)
        return typer.main.get_group(app).get_command(None, name)  # type: ignore[arg-type]
    app.command(name, rich_help_panel=panel)(target)
    return typer.main.get_command(app)
