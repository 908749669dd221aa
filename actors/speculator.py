"""The speculator pool's Ray Serve deployment class: one engine, bytes in, bytes out."""

from collections.abc import Mapping
from typing import Any

from actors.failures import reply_to_failure
from kv_transfer.codec import decode, encode
from kv_transfer.messages import SelectRequest
from speculator_service.engine import create_engine
from speculator_service.service import SpeculatorService


class SpeculatorActor:
    """One replica: one engine and the selection on top of it."""

    def __init__(self, engine: str, model: str, tensor_parallel: int, options: Mapping[str, Any]) -> None:
        self._engine = create_engine(engine, model, tensor_parallel=tensor_parallel, options=options)
        self._service = SpeculatorService(self._engine)

    async def info(self) -> bytes:
        """This replica's ModelInfo, encoded."""
        return encode(self._engine.info)

    async def select(self, payload: bytes) -> bytes:
        """SelectRequest in, Selection or an error out, all encoded. Cancelling the call aborts it in the engine."""
        try:
            return encode(await self._service.select(decode(payload, SelectRequest)))
        except Exception as error:
            return reply_to_failure(error, "speculator")

    async def stats(self) -> dict[str, int]:
        """The engine's counts of requests, where it keeps them (the mock does)."""
        names = ("started", "running", "aborted")
        return {name: getattr(self._engine, name) for name in names if hasattr(self._engine, name)}

    async def check_health(self) -> None:
        await self._engine.check_health()

    def __del__(self) -> None:
        if engine := getattr(self, "_engine", None):
            engine.close()
