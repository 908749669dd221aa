"""A selection for users, and its JSON file, which `skim select --json` writes, too."""

from dataclasses import dataclass, fields
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from cluster.json_file import read_json, write_json
from kv_transfer.layout import NO_LAYOUT, TextLayout
from kv_transfer.messages import KeptPrompt, Selection
from kv_transfer.options import SelectionOptions
from skim_common.errors import InvalidRequestError, SkimError


@dataclass(frozen=True, slots=True, eq=False)
class PairSelection(Selection):
    """What the speculator kept of one prompt.

    kept: token ids and original positions, int32 [K] each, and the prompt's length M. coverage: share of the importance
    that was kept, 0 to 1. importance: the tokens' scores, float32 [M]. timings: milliseconds by part (queue, speculate,
    select). options: how the prompt was scored and selected. layout: of the prompt. tokenizer: fingerprint of the
    tokenizer that the token ids are of. All but `kept` are None, empty or 0 where a file does not have them.
    """

    options: SelectionOptions | None = None
    layout: TextLayout = NO_LAYOUT
    tokenizer: str | None = None

    @classmethod
    def of(cls, selection: Selection, **more: Any) -> "PairSelection":
        """A speculator's selection, with the fields that it does not have."""
        return cls(**{field.name: getattr(selection, field.name) for field in fields(selection)}, **more)

    def to_json(self) -> dict[str, Any]:
        """The file's fields. The drafting session is not among them: it ends with its pair."""
        return {
            "token_ids": self.kept.token_ids.tolist(),
            "context_length": self.kept.context_length,
            "kept_positions": self.kept.positions.tolist(),
            "importance": None if self.importance is None else self.importance.tolist(),
            "look_ahead_tokens": self.kept.look_ahead_tokens.tolist(),
            "coverage": self.coverage,
            "options": None if self.options is None else self.options.model_dump(),
            "timings_ms": dict(self.timings),
            "tokenizer": self.tokenizer,
            "reused_tokens": self.reused_tokens,
        }

    def save(self, path: str | PathLike[str]) -> None:
        """Write the file at `path`. Raises SkimError if it cannot be written."""
        write_json(Path(path), self.to_json())

    @classmethod
    def load(cls, path: str | PathLike[str]) -> "PairSelection":
        """Read the file at `path`; token_ids, kept_positions and context_length are needed.

        Raises SkimError for a file that cannot be read or lacks one of them, InvalidRequestError for wrong values.
        """
        data = read_json(Path(path))
        try:
            kept = KeptPrompt(
                np.asarray(data["token_ids"], np.int32),
                np.asarray(data["kept_positions"], np.int32),
                int(data["context_length"]),
                np.asarray(data.get("look_ahead_tokens", []), np.int32),
            )
            scores, options = data.get("importance"), data.get("options")
            return cls(
                kept,
                float(data.get("coverage") or 0.0),
                None if scores is None else np.asarray(scores, np.float32),
                dict(data.get("timings_ms", {})),
                int(data.get("reused_tokens", 0)),
                options=None if options is None else SelectionOptions.model_validate(options),
                tokenizer=data.get("tokenizer"),
            )
        except KeyError as missing:
            raise SkimError(f"{path} has no field {missing}: give a file that `skim select --json` wrote") from None
        except (TypeError, ValueError, OverflowError) as error:  # pydantic's ValidationError is a ValueError
            raise InvalidRequestError(f"{path} is not a selection: {error}") from None
