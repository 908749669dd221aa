"""A target pool whose replicas are lost after some outputs, and what its client was told."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import numpy as np

from benchmarks.mock_engines.target import MockTarget
from kv_transfer.codec import decode, encode
from kv_transfer.messages import DELTA, GenerateOutput, GenerateRequest, KeptPrompt
from router.pools.migration import AnswerRecord, Migration, ReplicaLostError, migrate

PROMPT = KeptPrompt(np.array([20, 21, 22], np.int32), np.array([0, 4, 9], np.int32), 10)


class Replicas:
    """Stands in for the target pool. lives: outputs after which each replica is lost, in order; the last one lives.

    A life of None is a replica that was gone before it had the request. causes: of the losses; a single string for all.
    requests: what each replica got. sent: the number of outputs of all replicas.
    """

    def __init__(self, engine: MockTarget, *lives: int | None, causes: str | Sequence[str] = "died") -> None:
        self._engine, self._lives = engine, list(lives)
        self._causes = [causes] * len(lives) if isinstance(causes, str) else list(causes)
        self.requests: list[GenerateRequest] = []
        self.open = self.sent = 0

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateOutput, None]:
        self.requests.append(decode(encode(request), GenerateRequest))
        life, cause = (self._lives.pop(0), self._causes.pop(0)) if self._lives else (10**9, "")
        if life is None:
            raise ReplicaLostError(cause, accepted=False)
        self.open += 1
        try:
            async with aclosing(self._engine.generate(self.requests[-1])) as outputs:
                async for output in outputs:
                    if life == 0:
                        raise ReplicaLostError(cause, accepted=True)
                    life -= 1
                    self.sent += 1
                    yield decode(encode(output), GenerateOutput)
        finally:
            self.open -= 1


async def run(replicas: Replicas, prompt: KeptPrompt = PROMPT, **sampling: object):
    """All outputs, and the migrations."""
    moves: list[Migration] = []
    request = GenerateRequest("r", prompt, sampling)
    return [output async for output in migrate(AnswerRecord(request), replicas.generate, moves.append)], moves


def told(outputs: list[GenerateOutput], kind: int = DELTA) -> dict[int, tuple[object, ...]]:
    """Of each answer: its tokens, text, logprobs, and end. kind: of the outputs."""
    indices = sorted({c.index for o in outputs for c in o.completions})
    parts = {i: [c for o in outputs for c in o.completions if c.index == i] for i in indices}
    if kind != DELTA:
        parts = {i: part[-1:] for i, part in parts.items()}
    return {
        i: (
            [t for c in part for t in c.token_ids.tolist()],
            "".join(c.text for c in part),
            [[n.token_id for n in row] for c in part for row in c.logprobs or []],
            part[-1].finish_reason,
            part[-1].stop_reason,
            part[-1].cumulative_logprob,
        )
        for i, part in parts.items()
    }
