"""Which replica reads which window of a prompt. Pure.

A window goes to the replica that its tokens point to, so a replica that has read the same text before has its KV. No
replica gets more than SLACK times an equal share of the prompt's tokens (consistent hashing with bounded loads,
Mirrokni et al. 2016). Windows are placed in an order that follows from their tokens too: where a text stands in the
prompt changes nothing.
"""

from collections.abc import Sequence

from kv_transfer.arrays import Int32Array
from kv_transfer.prefix_hash import prefix_hash
from kv_transfer.rendezvous import ranked

SLACK = 1.15
"""More would keep more windows where they were read before, less would end the read sooner."""


def shared_out(windows: Sequence[Int32Array], replicas: Sequence[str], salt: str | None = None) -> list[str]:
    """The replica of each window. windows: the tokens of each, int32 [n]. salt: as `cache_salt` in SelectRequest."""
    keys = [prefix_hash(window, salt).hex() for window in windows]
    most = SLACK * sum(window.size for window in windows) / len(replicas)
    loads = dict.fromkeys(replicas, 0)
    places = [""] * len(windows)
    for number in sorted(range(len(windows)), key=keys.__getitem__):
        size, order = int(windows[number].size), ranked(keys[number], replicas)
        with_room = (replica for replica in order if loads[replica] + size <= most)
        places[number] = next(with_room, min(order, key=loads.__getitem__))
        loads[places[number]] += size
    return places
