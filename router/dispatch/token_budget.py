"""An upper bound of the tokens that a selection keeps of the client's texts. Pure."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from kv_transfer.layout import TextLayout
from kv_transfer.messages import Selection
from kv_transfer.options import AUTO
from router.options.errors import InvalidOptionError
from router.options.request import PrefillOptions
from skim_common.errors import SkimError

NAME = "max_tokens_kept"
"""The field of a request."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenBudget:
    """most: tokens. counted: bool [M], the tokens of the prompt that count."""

    most: int
    counted: npt.NDArray[np.bool_]

    def limit(self, options: PrefillOptions, layout: TextLayout) -> PrefillOptions:
        """The options with which the speculator keeps about so many tokens at most: it ranks by more than the units'
        scores. Raises InvalidOptionError if more are always kept."""
        fixed = layout.fixed(self.counted.size, options.protect_last)
        always, free = int((fixed & self.counted).sum()), int((~fixed).sum())
        if always > self.most:
            message = f"{NAME} is {self.most}, but {always} tokens are always kept; raise it or protect less"
            raise InvalidOptionError(message, NAME)
        share = max(self.most - always, 1) / max(free, 1)
        if share >= 1:
            return options
        least = min(options.min_keep, share)
        if options.fixed_rate is not None:
            rate = min(options.fixed_rate, share)
            return options.model_copy(update={"keep_rate": rate, "min_keep": least, "max_keep": None})
        largest = options.largest_share if options.keep_rate == AUTO else options.max_keep or 1.0
        return options.model_copy(
            update={"keep_rate": AUTO, "min_keep": least, "max_keep": max(least, min(largest, share))}
        )

    def trim(self, selection: Selection, options: PrefillOptions, layout: TextLayout) -> Selection:
        """The selection without the units of the lowest scores that are too many. options: it was made by them."""
        kept, scores = selection.kept, selection.unit_scores
        is_kept = np.zeros(self.counted.size, bool)
        is_kept[kept.positions] = True
        over = int((is_kept & self.counted).sum()) - self.most
        if over <= 0:
            return selection
        starts = layout.unit_starts(self.counted.size, options)
        if scores is None or scores.size != starts.size:
            raise SkimError("the speculator told no scores of this prompt's units; send the request without " + NAME)
        units = np.repeat(np.arange(starts.size), np.diff(starts, append=self.counted.size))
        free = is_kept & self.counted & ~layout.fixed(self.counted.size, options.protect_last)
        sizes = np.bincount(units[free], minlength=starts.size)
        order = np.argsort(scores, kind="stable")
        dropped = order[: int(np.searchsorted(np.cumsum(sizes[order]), over)) + 1]
        rest = is_kept & ~(free & np.isin(units, dropped))
        weights = scores.astype(np.float64)[units]
        share = float(weights[rest].sum() / (weights[is_kept].sum() or 1.0))
        left = rest[kept.positions]
        prompt = replace(kept, token_ids=kept.token_ids[left], positions=kept.positions[left])
        return replace(selection, kept=prompt, coverage=selection.coverage * share)
