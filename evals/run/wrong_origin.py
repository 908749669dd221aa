"""A target that can decode from the wrong position, to measure what restored positions of the answer are worth.

A kept prompt cannot express this, so the worker does it for requests that carry `FROM_KEPT` in `extra_args`: their
prompt sits at its original positions, but their answer at len(kept), len(kept) + 1, ... instead of M, M + 1, ...
All other requests are served as usual. For measurements only.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from kv_transfer.position_map import PositionMap, position_map
from target_service.vllm_backend.engine import VllmTarget
from target_service.vllm_backend.worker import TargetWorker
from vllm_hooks import positions

FROM_KEPT = "eval_decode_from_kept"


def from_kept(extra_args: Mapping[str, Any] | None) -> PositionMap | None:
    """As `position_map`, but with the wrong origin for requests that carry `FROM_KEPT`."""
    found = position_map(extra_args)
    if found is None or not (extra_args or {}).get(FROM_KEPT):
        return found
    slots = found.prompt_offsets.size
    return PositionMap(found.prompt_offsets + np.arange(slots, dtype=np.int32), context_length=slots)


class WrongOriginWorker(TargetWorker):
    """Replaces `position_map` in the modules of both model runners."""

    def init_device(self) -> None:
        positions.position_map = from_kept
        super().init_device()


class WrongOriginTarget(VllmTarget):
    worker_cls = "evals.run.wrong_origin.WrongOriginWorker"
