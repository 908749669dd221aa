"""What a scoring request tells the worker: which queries it needs, and whose attention scores the prompt."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kv_transfer.arrays import Span
from kv_transfer.options import SelectionOptions
from skim_common.errors import ModelError
from skim_common.models.fingerprint import model_fingerprint
from skim_common.models.info import ModelInfo, text_config
from speculator_service.scoring.heads import HeadProfile, known, load
from speculator_service.scoring.score_queries import ScoreQueries

logger = logging.getLogger(__name__)


def profile_of(model: ModelInfo, path: str | None) -> HeadProfile | None:
    """The model's head profile: that of the file `path`, else the one that is known on this machine, if any.

    Raises SkimError for a file that is no profile of this model.
    """
    try:
        fingerprint = model_fingerprint(model)
    except ModelError:
        if path is None:
            return None
        raise
    profile, text = load(Path(path)) if path else known(fingerprint), text_config(model.path)
    if profile is None:
        return None
    profile.check(fingerprint, text.num_hidden_layers, text.num_attention_heads)
    return profile


class ScoreArguments:
    """Makes the value of `scored_requests.SCORE_ARG` for each request to one model, without `eos_token_ids`."""

    def __init__(self, model: str, profile: HeadProfile | None) -> None:
        """model: its folder or hub name, for the log. profile: None if the model has none."""
        self._model, self._profile, self._told = model, profile, False

    def possible(self, options: SelectionOptions) -> SelectionOptions:
        """The options; with `scoring: attention` for `heads` without a profile, which is said once in the log."""
        if options.scoring != "heads" or self._profile is not None:
            return options
        if not self._told:
            self._told = True
            logger.warning(
                "speculator %s has no head profile, so scoring: heads scores by attention (docs/options.md)",
                self._model,
            )
        return options.model_copy(update={"scoring": "attention"})

    def of(self, options: SelectionOptions, prompt: int, questions: Sequence[Span]) -> dict[str, Any]:
        """For a prompt of `prompt` tokens. options: `possible` ones."""
        needed = ScoreQueries.of(options, prompt, questions)
        if options.scoring != "heads":
            how = options.model_dump(include={"layers", "aggregation"})
            return {**how, **_queries(needed, options.tokens_ahead)}
        profile = self._profile
        assert profile is not None
        heads = [(head.layer, head.head, head.weight) for head in profile.heads]
        return _by_heads(needed, heads, profile.question, profile.last, apart=False)

    def of_each_head(
        self, heads: Sequence[tuple[int, int]], prompt: int, questions: Sequence[Span], *, last: bool
    ) -> dict[str, Any]:
        """The mass of each of these (layer, head): of the rows of the question or of the last token."""
        needed = ScoreQueries.of(SelectionOptions(scoring="heads"), prompt, questions)
        asked = [(layer, head, 1.0) for layer, head in heads]
        return _by_heads(needed, asked, float(not last), float(last), apart=True)


def _by_heads(
    needed: ScoreQueries, heads: Sequence[tuple[int, int, float]], question: float, last: float, *, apart: bool
) -> dict[str, Any]:
    if not question:
        needed = ScoreQueries((), needed.steps)  # the prefix cache may hold the question
    return {"heads": heads, "question": question, "last": last, "apart": apart, **_queries(needed, 0)}


def _queries(needed: ScoreQueries, look_ahead: int) -> dict[str, Any]:
    return {
        "look_ahead": look_ahead,
        "rows": [(rows[0], rows[-1] + 1) for rows in needed.by_question],
        "steps": len(needed.steps),
    }
