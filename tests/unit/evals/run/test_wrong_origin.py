"""Only requests that carry FROM_KEPT decode from position len(kept)."""

import numpy as np

from evals.run.wrong_origin import FROM_KEPT, WrongOriginTarget, from_kept
from kv_transfer.limits import RESERVED_PREFIX
from kv_transfer.messages import KeptPrompt
from kv_transfer.position_map import position_args
from target_service.vllm_backend.worker import TargetWorker

KEPT = np.array([0, 1, 5, 6, 9], np.int32)
ASKED = position_args(KeptPrompt(np.zeros(5, np.int32), KEPT, 12))


def positions(found, count):
    """The positions of the first `count` slots."""
    offsets = np.empty(count, np.int64)
    found.fill(offsets, 0)
    return (offsets + np.arange(count)).tolist()


def test_the_answer_begins_where_the_kept_tokens_end():
    assert positions(from_kept({**ASKED, FROM_KEPT: True}), 8) == [*KEPT, 5, 6, 7]
    assert positions(from_kept(ASKED), 8) == [*KEPT, 12, 13, 14]


def test_plain_requests_stay_plain():
    assert from_kept(None) is None
    assert from_kept({FROM_KEPT: True}) is None


def test_the_flag_gets_through_to_the_worker():
    assert not FROM_KEPT.startswith(RESERVED_PREFIX)
    module, _, name = WrongOriginTarget.worker_cls.rpartition(".")
    worker = getattr(__import__(module, fromlist=[name]), name)
    assert issubclass(worker, TargetWorker)
    assert worker is not TargetWorker
