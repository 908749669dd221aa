"""What the dispatcher needs of the two pools."""

from collections.abc import AsyncGenerator, Callable
from typing import NamedTuple, Protocol

from kv_transfer.messages import GenerateOutput, GenerateRequest, Selection, SelectRequest, SessionHandle
from skim_common.models.info import ModelInfo

Admitted = Callable[[], None]
"""Is called when a pool works on a request and the target takes requests; perhaps more than once, or too late."""


def unwatched() -> None:
    """The `Admitted` of who does not want to know."""


class Problem(NamedTuple):
    """Why a part of this router does not serve yet. text: one sentence; None: it serves. failed: a person must repair
    it; else it is waited for, such as for a pool that is down."""

    text: str | None = None
    failed: bool = False


class Pools(Protocol):
    """What the dispatcher needs of the pools. Tests implement it with engines in their own process.

    speculator: None until its pool has answered for the first time. untrusted: a pool has failed its start probe.
    """

    speculator: ModelInfo | None
    target: ModelInfo

    @property
    def untrusted(self) -> bool: ...

    def replicas(self, pool: str) -> float:
        """The replicas of `speculator` or `target` that read prompts, per router."""
        ...

    async def select(self, request: SelectRequest, admitted: Admitted = unwatched, answers: bool = True) -> Selection:
        """answers: the target is to answer; without it, the selection needs no target. Raises SkimError; cancelling the
        task aborts the work in the pool."""
        ...

    def generate(
        self, request: GenerateRequest, admitted: Admitted = unwatched
    ) -> AsyncGenerator[GenerateOutput, None]:
        """One attempt on one replica. Raises SkimError, and ReplicaLostError if that replica is lost.

        Closing the generator aborts the work in the pool.
        """
        ...

    async def end_session(self, session: SessionHandle) -> None:
        """Ask the speculator to free a session that no target will use. Best effort; never raises."""
        ...
