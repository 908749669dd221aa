"""The options of a request that cross between the pools: how a prompt is selected, and how its answer is drafted."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, model_validator

YAML_SWITCH = BeforeValidator(lambda value: ("on" if value else "off") if isinstance(value, bool) else value)
"""YAML reads the words `on` and `off` as booleans."""
OnOff = Annotated[Literal["on", "off"], YAML_SWITCH]

MAX_LOOK_AHEAD = 64

AUTO: Literal["auto"] = "auto"
ALWAYS: Literal["always"] = "always"
AUTO_COVERAGE = 0.5
"""The coverage that `keep_rate: auto` wants where none is set. `skim calibrate` finds the value for a pair."""
HEADS_COVERAGE, LONG_COVERAGE = 0.7, 0.6
"""The same for scores of retrieval heads, whose importance is flatter; the second of a prompt that has LONG_FROM tokens
or more that may be dropped, because the evidence of an answer does not grow with the text around it."""
LONG_FROM = 6144
"""Tokens."""
MIN_KEEP = 0.05
"""The `min_keep` where none is set."""
AUTO_MAX_KEEP = 0.5
"""The `max_keep` of `keep_rate: auto` where none is set. The target then saves at least half of its prefill, unless
`min_keep` wants more."""
SHORT_TEXT = 256
"""Tokens. With `reuse`, a new text of at most this length is kept whole in a later turn."""
LATE_TOKENS = 128
"""Tokens. With `reuse`, a later turn's prompt has at least so many of the old text's most important tokens."""


def _rate(value: Any) -> Any:
    # An error of pydantic's own union would name the members of the union, not the field alone.
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if value == AUTO or (number and 0 < value <= 1):
        return value
    raise ValueError("must be auto or a number > 0 and <= 1")


def _least_keep(options: dict[str, Any]) -> float:
    """The `min_keep` of options without one."""
    rate = options["keep_rate"]
    return MIN_KEEP if rate == AUTO else min(MIN_KEEP, rate)


class SelectionOptions(BaseModel):
    """How the speculator scores a prompt and what it keeps (Speculative Prefill, arXiv 2502.02789, section 3).

    The request option `speculative_prefill`, the `selection:` section of a config file, and the form on the wire.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    keep_rate: Annotated[float | Literal["auto"], PlainValidator(_rate)] = Field(
        AUTO,
        description="share to keep of what may be dropped; auto: as much as `coverage` asks for, within bounds",
    )
    coverage: float | None = Field(
        None,
        gt=0,
        le=1,
        description="share of the importance to keep: with `keep_rate: auto` within its bounds, with a number instead"
        f" of it; none: {AUTO_COVERAGE}; {HEADS_COVERAGE} by heads, and {LONG_COVERAGE} of a prompt with {LONG_FROM:,}"
        " tokens or more that may be dropped",
    )
    min_keep: float = Field(
        default_factory=_least_keep,
        gt=0,
        le=1,
        description="smallest share that is kept, whatever `keep_rate`, `coverage` or an earlier turn asks for; a"
        " smaller number for `keep_rate` lowers the default",
    )
    selector: Literal["auto", "speculator", "lexical"] = Field(
        AUTO,
        description="what scores the prompt: the speculator's attention, or the words shared with the question (BM25);"
        " auto: the words where they place the question, else the speculator",
    )
    scoring: Literal["auto", "attention", "heads"] = Field(
        AUTO,
        description="how the speculator scores: by the attention of all heads (the paper), or by the mass of its"
        " retrieval heads; auto: the heads in windows, else all",
    )
    read: Literal["auto", "whole", "windows"] = Field(
        AUTO,
        description="how the speculator reads the prompt: as a whole, or in windows, which are short prompts of their"
        " own with the question after each; auto: in windows, by a speculator with a head profile",
    )
    read_again: OnOff = Field(
        "on",
        description="of a prompt of several windows, read the best of all windows once more as one text, which ranks it"
        " anew",
    )
    window_tokens: int = Field(
        4096,
        ge=128,
        le=16384,
        description="most prompt tokens of a window; a single text of up to 1.5 times as many is one",
    )
    look_ahead: int = Field(
        8,
        ge=0,
        le=MAX_LOOK_AHEAD,
        description="tokens that the speculator decodes after the prompt; none with `scoring: heads`",
    )
    chunk_size: int = Field(32, ge=1, le=4096, description="tokens per chunk, where the prompt is cut in chunks")
    layers: Literal["all", "last_half", "last4", "last1"] = Field(
        "last_half",
        description="the speculator's layers whose attention counts, among those that attend to the whole prompt; all:"
        " as in the paper; of at most four layers, last_half counts all",
    )
    aggregation: Literal["max", "head_max_layer_mean"] = Field(
        "max", description="over heads and layers: the maximum (the paper), or maximum over heads, mean over layers"
    )
    granularity: Literal["text", "chunk", "token"] = Field(
        "text",
        description="what is kept or dropped as a whole: lines and sentences (chunks, if only token ids are known), "
        "chunks (the paper), or tokens",
    )
    protect_last: int = Field(32, ge=1, le=4096, description="tokens at the end of the prompt that are always kept")
    reuse: OnOff = Field(
        "on",
        description="extend what was kept for an earlier prompt with the same beginning; off: select anew, remember"
        " nothing",
    )
    max_keep: float | None = Field(
        None,
        gt=0,
        le=1,
        description="largest share of the prompt that is kept: the upper bound of `keep_rate: auto`, and with `reuse`"
        " a prompt over it is selected anew; none: half with auto, or `min_keep` if that is more; with `reuse`, three"
        " times the tokens of a fresh selection",
    )

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.max_keep is not None and self.max_keep < self.min_keep:
            raise ValueError(f"max_keep must be at least min_keep, not {self.max_keep:g} and {self.min_keep:g}")
        if self.read == "windows" and self.scoring == "attention":
            raise ValueError(
                "read windows needs scoring heads: the attention of other heads depends on the whole prompt"
            )
        return self

    def for_prompt(self, *, windows: bool) -> Self:
        """These options with `scoring` and `read` decided for a prompt.

        windows: whether the speculator has a head profile, and the prompt a `WindowPlan` (`kv_transfer.windows`). Where
        an option asks for something that windows do not have, `auto` reads the prompt as a whole.
        """
        read = self.read
        if read == AUTO:
            fields = SelectionOptions.model_fields
            # The options of the attention of all heads.
            plain = all(getattr(self, name) == fields[name].default for name in ("look_ahead", "layers", "aggregation"))
            suits = windows and plain and self.granularity == "text" and self.scoring != "attention"
            read = "windows" if suits else "whole"
        scoring = self.scoring
        if scoring == AUTO:
            scoring = "heads" if read == "windows" else "attention"
        return self.model_copy(update={"read": read, "scoring": scoring})

    @property
    def largest_share(self) -> float:
        """The largest share that `keep_rate: auto` keeps."""
        return max(AUTO_MAX_KEEP, self.min_keep) if self.max_keep is None else self.max_keep

    @property
    def fixed_rate(self) -> float | None:
        """The share of the chunks to keep; None if `wanted_coverage` says how many are kept."""
        if self.coverage is not None or isinstance(self.keep_rate, str):
            return None
        return max(self.keep_rate, self.min_keep)

    @property
    def wanted_coverage(self) -> float | None:
        """The share of the importance to keep, but for `covering`; None if `fixed_rate` says how many are kept."""
        return AUTO_COVERAGE if self.keep_rate == AUTO and self.coverage is None else self.coverage

    def covering(self, tokens: int) -> "SelectionOptions":
        """These options with the coverage that a prompt wants. tokens: those that may be dropped."""
        wanted = self.wanted_coverage
        if wanted is None:
            return self
        if self.coverage is None and self.scoring == "heads" and self.granularity == "text":
            wanted = LONG_COVERAGE if tokens >= LONG_FROM else HEADS_COVERAGE
        return self.model_copy(update={"coverage": wanted})

    @property
    def least(self) -> Self:
        """The options of a selection that keeps as much as every selection must: `min_keep` as its rate."""
        return self.model_copy(update={"keep_rate": self.min_keep, "coverage": None})

    @property
    def keeps_all(self) -> bool:
        """Whether nothing would be dropped."""
        if self.keep_rate == AUTO:
            return self.min_keep == 1 or (self.coverage == 1 and self.largest_share == 1)
        return 1 in (self.fixed_rate, self.coverage, self.min_keep)

    @property
    def tokens_ahead(self) -> int:
        """N, the number of tokens that the speculator decodes after the prompt."""
        return self.look_ahead if self.selector != "lexical" and self.scoring != "heads" else 0


class DecodeOptions(BaseModel):
    """Options of speculative decoding (arXiv 2211.17192 and 2302.01318).

    The request option `speculative_decode`, the `decode:` section of a config file, and the form on the wire.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    method: Literal[
        "remote",
        "ngram",
        "ngram_gpu",
        "suffix",
        "draft_model",
        "medusa",
        "eagle",
        "eagle3",
        "mtp",
        "dflash",
        "dspark",
        "none",
    ] = Field(
        "remote",
        description="who drafts; remote: the speculator. The others are vLLM's: ngram_gpu and dspark need a GPU. A"
        " request may choose the deployment's method or none",
    )
    max_draft_tokens: int = Field(
        4, ge=1, le=16, description="most drafts per verification; of a request, at most the deployment's"
    )
    adaptive: bool = Field(
        True,
        description="choose the number of drafts from measured acceptance and costs; none if drafts do not pay",
    )
    draft_context: Literal["full", "kept"] = Field(
        "kept",
        description="what the drafter reads: what was kept, while the target reads it, or the whole prompt, which it"
        " has read for the scores; in windows, and where words select, always what was kept",
    )
