"""One prompt's way through the speculator pool: check it, score it, choose what to keep, answer with a kept prompt."""

from time import perf_counter

import numpy as np
import torch

from kv_transfer.errors import SkimError
from kv_transfer.messages import KeptPrompt, ModelInfo, Selection, SelectRequest, SessionHandle
from speculator_service.engine import SpeculatorEngine
from speculator_service.limits import check_request
from speculator_service.scoring.selection import select


class SpeculatorService:
    """Selects over any speculator engine. Calls may run at once; batching is the engine's work."""

    def __init__(self, engine: SpeculatorEngine, address: str | None = None) -> None:
        """address: host:port of this replica's draft channel; requests with decode options then leave a session."""
        self.engine = engine
        self.address = address

    @property
    def info(self) -> ModelInfo:
        """The facts of the engine's model."""
        return self.engine.info

    async def select(self, request: SelectRequest) -> Selection:
        """Score the prompt [M] and keep what its options ask for; cancelling this call aborts it in the engine.

        Raises InvalidRequestError for a request that no speculator could serve, EngineUnavailableError if the engine
        is dead, SkimError if its scores make no sense.
        """
        check_request(request, self.info)
        context = request.decode.draft_context if self.address and request.decode else None
        scores = await self.engine.score(
            request.request_id,
            request.token_ids,
            request.options,
            cache_salt=request.cache_salt,
            keep_session=context == "full",
        )
        if scores.importance.shape != request.token_ids.shape:
            shapes = f"{tuple(scores.importance.shape)} for a prompt of {request.token_ids.shape}"
            raise SkimError(f"the speculator's scores do not fit the prompt: {shapes}")
        start = perf_counter()
        positions, coverage = select(scores.importance, request.options, request.protected_spans.tolist())
        kept = positions.numpy()
        prompt = KeptPrompt(
            token_ids=request.token_ids[kept],
            positions=kept.astype(np.int32),
            context_length=int(request.token_ids.size),
            look_ahead_tokens=np.array(scores.look_ahead_tokens, np.int32),
            session=SessionHandle(self.address, request.request_id) if self.address and context else None,
        )
        if context == "kept":
            await self.engine.open_session(request.request_id, prompt)
        timings = {**scores.timings, "select": (perf_counter() - start) * 1e3}
        importance = scores.importance.to(torch.float32).numpy() if request.return_importance else None
        return Selection(kept=prompt, coverage=coverage, importance=importance, timings=timings)
