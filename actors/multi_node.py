"""A replica whose ranks are on several nodes: its placement group, and what its engine needs there."""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import ray
from ray.util.placement_group import PlacementGroup, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from skim_common.environment import with_environment
from skim_common.models.source import is_hub_name, local_folder


def own_group() -> PlacementGroup | None:
    """The placement group in which this actor runs; None on a single node, and outside Ray."""
    return ray.util.get_current_placement_group() if ray.is_initialized() else None


def nodes_of(group: PlacementGroup) -> dict[int, str]:
    """The node id of each bundle of the group; without those of bundles that have no node at present."""
    return dict(placement_group_table(group)["bundles_to_node_id"])


@contextmanager
def ray_for_ranks(group: PlacementGroup | None) -> Iterator[None]:
    """An engine that starts in this context can start its ranks as actors in `group`: its core connects to Ray.

    vLLM tells the core the address only if it chooses the start method of the process itself (`_maybe_force_spawn`).
    """
    address = {"RAY_ADDRESS": ray.get_runtime_context().gcs_address} if group is not None else {}
    with with_environment(address):
        yield


async def fetch_on_nodes(group: PlacementGroup | None, models: Iterable[str]) -> None:
    """Download the weights of hub names to every node of the group. Raises ModelError."""
    names = [model for model in models if is_hub_name(model)]
    if group is None or not names:
        return
    bundles = {node: bundle for bundle, node in nodes_of(group).items()}
    places = [PlacementGroupSchedulingStrategy(group, bundle) for bundle in bundles.values()]
    fetch = ray.remote(num_cpus=0)(_fetch)
    await asyncio.gather(*(fetch.options(scheduling_strategy=place).remote(names) for place in places))


def _fetch(names: list[str]) -> None:
    for name in names:
        local_folder(name, weights=True)
