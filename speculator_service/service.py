"""Makes a selection: checks the request, scores the prompt, chooses what to keep, returns the kept prompt."""

from time import perf_counter

import numpy as np
import torch

from kv_transfer.errors import SkimError
from kv_transfer.messages import KeptPrompt, ModelInfo, Selection, SelectRequest, SessionHandle
from speculator_service.engine import SpeculatorEngine
from speculator_service.limits import check_request
from speculator_service.scoring.selection import select


class SpeculatorService:
    """Makes selections with any speculator engine. Calls may run concurrently; the engine batches them."""

    def __init__(self, engine: SpeculatorEngine, address: str | None = None) -> None:
        """address: host:port of this replica's draft channel. With it, requests with decode options keep a session.

        An engine without `supports_drafts` keeps none. Its answers are drafted by their look-ahead tokens only.
        """
        self.engine = engine
        self.address = address if engine.supports_drafts else None

    @property
    def info(self) -> ModelInfo:
        """The engine's ModelInfo."""
        return self.engine.info

    async def select(self, request: SelectRequest) -> Selection:
        """Score the prompt [M] and select by the request's options. Cancelling this call aborts it in the engine.

        Raises InvalidRequestError for an invalid request, EngineUnavailableError if the engine is dead, SkimError if
        the engine returns invalid scores.
        """
        check_request(request, self.info)
        context = request.decode.draft_context if self.address and request.decode else None
        scores = await self.engine.score(
            request.request_id,
            request.token_ids,
            request.options,
            cache_salt=request.cache_salt,
            keep_session=context == "full",
            question=request.question,
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
            await self.engine.open_session(request.request_id, prompt, cache_salt=request.cache_salt)
        timings = {**scores.timings, "select": (perf_counter() - start) * 1e3}
        importance = scores.importance.to(torch.float32).numpy() if request.return_importance else None
        return Selection(kept=prompt, coverage=coverage, importance=importance, timings=timings)
