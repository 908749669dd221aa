"""Command groups whose commands are imported only when they are used."""

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup


def lazy_group(commands: dict[str, str], *, panel: str | None = None) -> type[TyperGroup]:
    """A group class for `typer.Typer(cls=...)`, with further commands after the group's own.

    commands: the place of each command's function or `typer.Typer`, as "module:name", by the command's name.
    panel: their heading in --help.
    """

    class LazyGroup(TyperGroup):
        def list_commands(self, ctx: Any) -> list[str]:
            return [*super().list_commands(ctx), *commands]

        def get_command(self, ctx: Any, name: str) -> Any:
            return _load(name, commands[name], panel) if name in commands else super().get_command(ctx, name)

    return LazyGroup


def _load(name: str, place: str, panel: str | None) -> Any:
    """The click command of the function or the `typer.Typer` at `place`."""
    module, _, attribute = place.partition(":")
    found = getattr(import_module(module), attribute)
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    if isinstance(found, typer.Typer):
        app.add_typer(found, name=name, rich_help_panel=panel)
        return typer.main.get_group(app).get_command(None, name)  # type: ignore[arg-type]
    app.command(name, rich_help_panel=panel)(found)
    return typer.main.get_command(app)
