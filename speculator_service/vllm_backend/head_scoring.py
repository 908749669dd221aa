"""Scores a prompt by some heads of the model: captured queries, the keys of these heads alone, a sum over the ranks.

Each tensor parallel rank has the keys of its own heads. A head belongs to one rank only, so the masses of all ranks add
up. Run on CPU with TP 1 and 2, and on one H200 (docs/gpu.md).
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from vllm.distributed import get_tp_group
from vllm.model_executor.layers.attention import MLAAttention
from vllm.model_executor.models.utils import extract_layer_index

from speculator_service.scoring.heads import head_weights, row_weights
from speculator_service.scoring.paged import HeadsOfLayer, PagedScoring
from speculator_service.vllm_backend.keys import KeyReader, absorbed
from speculator_service.vllm_backend.query_capture import ScoredLayer, attention_formula
from speculator_service.vllm_backend.scored_requests import ScoredRequest


class _Own(NamedTuple):
    """The asked heads that this rank has in one layer. layer: index among the scored layers.

    heads: indices among the rank's heads. places: of each, its index among the asked heads.
    """

    layer: int
    heads: list[int]
    places: list[int]


class HeadScoring:
    """Scores of requests whose options name `heads`. One for each rank."""

    def __init__(
        self, layers: Sequence[ScoredLayer], keys: KeyReader, scoring: PagedScoring, missing: torch.Tensor
    ) -> None:
        """layers: the scored layers. missing: `QueryCapture.missing`."""
        self._layers, self._keys, self._scoring, self._missing = layers, keys, scoring, missing
        self._index = {extract_layer_index(layer.layer_name): index for index, layer in enumerate(layers)}

    def all_heads(self) -> list[tuple[int, int]]:
        """(layer, head) of every head of all ranks that can score, counted as in the model's config."""
        count = self._layers[0].num_heads * get_tp_group().world_size
        return [(layer, head) for layer in self._index for head in range(count)]

    def score(self, request: ScoredRequest) -> torch.Tensor:
        """Importance [M] (`scoring.heads`), the best over the questions; with the option `apart`, the mass of each
        asked head [n, M].

        A head in a layer that does not attend to the whole prompt scores nothing.
        """
        asked, apart = request.asked.heads, request.asked.apart
        groups = _query_groups(request)
        shape = (len(asked), request.prompt) if apart else (request.prompt,)
        masses = torch.zeros((len(groups), *shape), device=self._missing.device)
        if own := self._own([(layer, head) for layer, head, _ in asked]):
            places = [place for layer in own for place in layer.places]
            layers = self._layers_read(request, own)
            weights = head_weights([weight for *_, weight in asked])[places].to(masses.device)
            for number, group in enumerate(groups):
                read = self._reads(request, layers, group)
                if apart:
                    masses[number, places] = self._scoring.masses(*read)
                else:
                    masses[number] = self._scoring.weighted_mass(read[0], weights, *read[1:])
        if get_tp_group().world_size > 1:
            torch.distributed.all_reduce(masses, group=get_tp_group().device_group)
        return masses.amax(0)

    def _own(self, asked: Sequence[tuple[int, int]]) -> list[_Own]:
        count = self._layers[0].num_heads
        first = get_tp_group().rank_in_group * count
        found: dict[int, _Own] = {}
        for place, (layer, head) in enumerate(asked):
            if layer in self._index and first <= head < first + count:
                own = found.setdefault(layer, _Own(self._index[layer], [], []))
                own.heads.append(head - first)
                own.places.append(place)
        return list(found.values())

    def _layers_read(self, request: ScoredRequest, own: Sequence[_Own]) -> list[HeadsOfLayer]:
        """All captured queries and the keys of each layer in `own`."""
        queries = request.captured([*request.rows, *request.steps], self._missing)
        layers = [self._layers[each.layer] for each in own]
        keys = self._keys.read(layers, request.blocks, request.prompt)
        reads = []
        for each, layer, of_layer in zip(own, layers, keys, strict=True):
            asking = queries[each.layer]
            if isinstance(layer, MLAAttention):
                asking = absorbed(layer, asking)
            formula = attention_formula(layer)
            if formula.sinks is not None:
                formula = formula._replace(sinks=formula.sinks[each.heads])
            group = layer.num_heads // of_layer.shape[0]
            reads.append(HeadsOfLayer(asking[:, each.heads], of_layer, [head // group for head in each.heads], formula))
        return reads

    def _reads(
        self, request: ScoredRequest, layers: Sequence[HeadsOfLayer], group: Sequence[int]
    ) -> tuple[list[HeadsOfLayer], torch.Tensor, torch.Tensor]:
        """The layers with the queries of `group` alone, and the weight and the number of visible keys of each query."""
        asked, device = request.asked, self._missing.device
        reads = [layer._replace(queries=layer.queries[list(group)]) for layer in layers]
        weights = row_weights(asked.question, asked.last, len(group) - 1)
        visible = torch.tensor([*(row + 1 for row in request.rows), request.prompt])[list(group)]
        return reads, weights.to(device), visible.to(device, non_blocking=True)


def _query_groups(request: ScoredRequest) -> list[list[int]]:
    """Which queries score the prompt together: the rows of one question, and the last prompt token, which is the last
    query. Numbers of queries."""
    last, groups, first = len(request.rows), [], 0
    for rows in request.questions:
        groups.append([*range(first, first + len(rows)), last])
        first += len(rows)
    return groups or [[last]]
