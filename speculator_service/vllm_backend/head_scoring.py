"""Scores a prompt by some heads of the model: captured queries, the keys of these heads alone, a sum over the ranks.

Each tensor parallel rank has the keys of its own heads. A head belongs to one rank only, so the masses of all ranks add
up. Run on CPU with TP 1 and 2, and on one H200 (docs/gpu.md).
"""

from collections.abc import Sequence

import torch
from vllm.distributed import get_tp_group
from vllm.model_executor.models.utils import extract_layer_index

from speculator_service.scoring.heads import head_weights, row_weights
from speculator_service.scoring.paged import HeadsOfLayer, PagedScoring
from speculator_service.vllm_backend.keys import KeyReader, absorbed
from speculator_service.vllm_backend.query_capture import ScoredLayer, attention_formula
from speculator_service.vllm_backend.scored_requests import ScoredRequest


class HeadScoring:
    """Scores of requests that ask for some heads. One for each rank."""

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
        """Importance [M] (`scoring.heads`), the best over the questions; with `apart`, the mass of each asked head
        [n, M]. A head in a layer that does not attend to the whole prompt scores nothing.
        """
        asked, device = request.asked, self._missing.device
        shape = (len(asked.heads), request.prompt) if asked.apart else (request.prompt,)
        masses = torch.zeros((max(1, len(request.questions)), *shape), device=device)
        layers, places = self._read(request)
        if layers:
            shares = head_weights([weight for *_, weight in asked.heads])[places].to(device)
            visible = torch.tensor([*(row + 1 for row in request.rows), request.prompt])
            for number, group in enumerate(_query_groups(request)):
                read = [layer._replace(queries=layer.queries[group]) for layer in layers]
                weights = row_weights(asked.question, asked.last, len(group) - 1).to(device)
                keys = visible[group].to(device, non_blocking=True)
                if asked.apart:
                    masses[number, places] = self._scoring.masses(read, weights, keys)
                else:
                    masses[number] = self._scoring.weighted_mass(read, shares, weights, keys)
        if get_tp_group().world_size > 1:
            torch.distributed.all_reduce(masses, group=get_tp_group().device_group)
        return masses.amax(0)

    def _read(self, request: ScoredRequest) -> tuple[list[HeadsOfLayer], list[int]]:
        """The asked heads of this rank by layer, with all captured queries and the keys; and their numbers among all
        asked heads."""
        count = self._layers[0].num_heads
        first = get_tp_group().rank_in_group * count
        of_layers: dict[int, list[int]] = {}
        for place, (layer, head, _) in enumerate(request.asked.heads):
            if layer in self._index and first <= head < first + count:
                of_layers.setdefault(self._index[layer], []).append(place)
        if not of_layers:
            return [], []
        captured = request.captured([*request.rows, *request.steps], self._missing)
        layers = [self._layers[index] for index in of_layers]
        all_keys = self._keys.read(layers, request.blocks, request.prompt)
        reads = []
        for (index, places), layer, keys in zip(of_layers.items(), layers, all_keys, strict=True):
            heads = [request.asked.heads[place][1] - first for place in places]
            queries, formula = absorbed(layer, captured[index]), attention_formula(layer)
            if formula.sinks is not None:
                formula = formula._replace(sinks=formula.sinks[heads])
            group = layer.num_heads // keys.shape[0]
            reads.append(HeadsOfLayer(queries[:, heads], keys, [head // group for head in heads], formula))
        return reads, [place for places in of_layers.values() for place in places]


def _query_groups(request: ScoredRequest) -> list[list[int]]:
    """The numbers of the queries that score together: the rows of a question, and the last query."""
    last, groups, first = len(request.rows), [], 0
    for rows in request.questions:
        groups.append([*range(first, first + len(rows)), last])
        first += len(rows)
    return groups or [[last]]
