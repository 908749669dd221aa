"""The router's app over mock engines in this process, as the unit tests have it."""

from collections.abc import Awaitable, Callable
from types import SimpleNamespace

from tests.unit.router.conftest import served as fixture


async def serve() -> tuple[SimpleNamespace, Callable[[], Awaitable[None]]]:
    """The app with its client, and what closes it."""
    app = fixture.__wrapped__ if hasattr(fixture, "__wrapped__") else fixture.__pytest_wrapped__.obj
    running = app()
    served = await anext(running)

    async def close() -> None:
        await anext(running, None)

    return served, close
