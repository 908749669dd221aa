"""The head profile of a speculator: its retrieval heads, and how much each of them counts.

A retrieval head attends from a question to the text that answers it (Wu et al., "Retrieval Head Mechanistically
Explains Long-Context Factuality", arXiv 2404.15574; found by the attention to known evidence: Zhang et al.,
"Query-Focused Retrieval Heads", arXiv 2506.09944).

The importance of prompt token j is the sum over the profile's heads h of weight[h] times the attention of h to j: the
mean of the question's rows times `question`, plus the row of the last prompt token times `last`. Weights count by their
shares, so the importance of a whole prompt adds up to 1 at most, and what no head finds stays on the first token.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from skim_common.errors import ModelError, SkimError, one_line
from skim_common.models.info import ModelInfo, text_config
from speculator_service.model import model_fingerprint

PACKAGED = resources.files("speculator_service") / "scoring" / "profiles"


class Head(BaseModel):
    """A query head. layer, head: counted from 0, as in the model's config, over all ranks. weight: above 0."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    layer: int = Field(ge=0)
    head: int = Field(ge=0)
    weight: float = Field(1.0, gt=0, allow_inf_nan=False)


class HeadProfile(BaseModel):
    """The retrieval heads of one model.

    fingerprint: `speculator_service.model` of the model. question, last: the weights of the rows of the question
    and of the last prompt token. gain_over_words: the share of the evidence that heads and words keep at keep rate 0.1,
    less that of words alone, on questions of people (`skim heads --questions`); None: not measured. model, made: for
    people; the model's name, and how the profile was made.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    model: str
    fingerprint: str
    question: float = Field(ge=0, allow_inf_nan=False)
    last: float = Field(ge=0, allow_inf_nan=False)
    heads: tuple[Head, ...] = Field(min_length=1)
    gain_over_words: float | None = Field(None, ge=-1, le=1)
    made: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _has_rows_and_each_head_once(self) -> Self:
        if self.question == self.last == 0:
            raise ValueError("question or last must be above 0")
        if len({(head.layer, head.head) for head in self.heads}) < len(self.heads):
            raise ValueError("a head is listed twice")
        return self

    def check(self, fingerprint: str, layers: int, heads: int) -> None:
        """Raise SkimError unless this is a profile of the model with this fingerprint and these sizes."""
        if self.fingerprint != fingerprint:
            raise SkimError(
                f"the head profile is of {self.model} (fingerprint {self.fingerprint[:12]}), not of this speculator"
                f" ({fingerprint[:12]}); make one with `skim heads`"
            )
        for head in self.heads:
            if head.layer >= layers or head.head >= heads:
                raise SkimError(
                    f"the head profile of {self.model} names layer {head.layer}, head {head.head}, but the model has"
                    f" {layers} layers of {heads} heads; make one with `skim heads`"
                )


def load(path: Path) -> HeadProfile:
    """Read a profile. Raises SkimError that names the file for one that cannot be read or is none."""
    try:
        return HeadProfile.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SkimError(f"head profile {path} cannot be read: {one_line(error)}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise SkimError(f"{path} is no head profile: {where}: {first['msg']}") from None


def save(profile: HeadProfile, path: Path) -> None:
    """Write a profile that `load` reads. Raises SkimError for a file that cannot be written."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(profile.model_dump_json(indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, path)  # another replica may read it now
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise SkimError(f"cannot write {path}: {error.strerror}") from None


def saved_file(fingerprint: str) -> Path:
    """Where a profile is saved for later starts on this machine. Raises SkimError for a user without a home, such as a
    user id of a container that has no name there."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if cache.startswith("~"):
        raise SkimError("this user has no home folder for the head profile: set XDG_CACHE_HOME or HOME to a folder")
    return Path(cache) / "skim" / "heads" / f"{fingerprint}.json"


def profile_of(model: ModelInfo, path: str | None) -> HeadProfile | None:
    """The model's head profile: that of the file `path`, else the known one. Raises SkimError for a file that is no
    profile of this model."""
    try:
        fingerprint = model_fingerprint(model)
    except ModelError:
        if path is None:
            return None
        raise
    profile, text = load(Path(path)) if path else known(fingerprint), text_config(model.path)
    if profile is not None:
        profile.check(fingerprint, text.num_hidden_layers, text.num_attention_heads)
    return profile


def known(fingerprint: str) -> HeadProfile | None:
    """The profile of `saved_file` on this machine, else the packaged one. Raises SkimError for a file that is none."""
    saved: Path | None = None
    with suppress(SkimError):
        saved = saved_file(fingerprint)
    if saved is not None and os.path.exists(saved):  # Path.exists raises where a folder cannot be entered
        return load(saved)
    files = (Path(str(file)) for file in PACKAGED.iterdir() if file.name.endswith(".json"))
    return next((profile for profile in map(load, files) if profile.fingerprint == fingerprint), None)


def row_weights(question: float, last: float, rows: int) -> torch.Tensor:
    """The weight of each query, float32 [rows + 1]: the question's rows, which share `question`, then the last prompt
    token, which has all of it without rows."""
    if not rows:
        return torch.ones(1)
    return torch.tensor([question / rows] * rows + [last]) / (question + last)


def head_weights(weights: Sequence[float]) -> torch.Tensor:
    """The share of each head, float32 [n], of the weights of all heads."""
    return torch.tensor(weights, dtype=torch.float64).div(sum(weights)).float()
