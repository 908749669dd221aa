"""The target pool's Ray Serve deployment class: one engine, bytes in, a stream of bytes out."""

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from actors.failures import reply_to_failure
from actors.metrics import PoolMetrics, request_counts
from kv_transfer.codec import decode, encode
from kv_transfer.messages import GenerateRequest
from target_service.engine import create_engine

logger = logging.getLogger(__name__)

ACCEPTED = b""
"""First item of every stream: the replica has the request."""


class TargetActor:
    """One replica: one engine, over one or several GPUs of its node (tensor parallel)."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, engine: str, model: str, tensor_parallel: int, options: Mapping[str, Any]
    ) -> None:
        self._engine = create_engine(engine, model, tensor_parallel=tensor_parallel, options=options)
        self._metrics = PoolMetrics("target", self.stats)

    async def info(self) -> bytes:
        """This replica's ModelInfo, encoded."""
        return encode(self._engine.info)

    async def generate(self, payload: bytes) -> AsyncGenerator[bytes, None]:
        """`ACCEPTED`, then encoded GenerateOutputs; an error is one last encoded message."""
        yield ACCEPTED
        try:
            request = decode(payload, GenerateRequest)
            async with aclosing(self._engine.generate(request)) as outputs:
                async for output in outputs:
                    yield encode(output)
        except Exception as error:
            yield reply_to_failure(error, "target")

    async def stats(self) -> dict[str, Any]:
        """Counts of requests and of speculation, where the engine speculates (vLLM's does)."""
        decode_stats = getattr(self._engine, "decode_stats", None)
        return request_counts(self._engine) | (await decode_stats() if decode_stats else {})

    async def check_health(self) -> None:
        await self._engine.check_health()

    def __del__(self) -> None:
        if engine := getattr(self, "_engine", None):
            engine.close()
