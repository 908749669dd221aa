"""Renders an explanation and its prompt as one HTML page, which needs no network.

The prompt is hostile input: the page has it as JSON in ASCII, without a character that HTML reads, and shows it as
text. Characters that would be invisible or change the order of others are shown by name.
"""

import codecs
import html
import json
import re  # noqa: TID251  one class of characters
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from router.explain.explained import REASONS
from router.prompt.rendered import MessageSpan, RenderedPrompt
from skim_common.errors import InvalidRequestError, ModelError
from skim_common.models.token_text import TokenText

UNKNOWN = b"\xef\xbf\xbd"
"""The text of a token id that is not in the vocabulary: U+FFFD in UTF-8."""
TITLE = "What was kept of a prompt"

LABELS = {
    "protected": "Protected",
    "reused": "Reused",
    "appended": "Late units",
    "new": "New text",
    "top": "Best units",
    "coverage": "Best units",
}
_DROPPED = {"name": "dropped", "label": "Dropped", "text": "not read by the target"}

# Controls but for tab and line feed, soft hyphen, bidirectional controls, zero-width and line separators, tags and
# surrogates. The joiners U+200C and U+200D are left: scripts and emoji need them.
_NAMED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)


@dataclass(frozen=True, slots=True, eq=False)
class PromptText:
    """The text of a prompt of M tokens. Token i is text[cuts[i]:cuts[i + 1]].

    text: what the model reads, with the chat template. Bytes that are not UTF-8 are U+FFFD. cuts: int64 [M + 1], from 0
    to len(text), in code points, never falling; a character of several tokens belongs to the last of them. messages:
    as `RenderedPrompt.message_spans`.
    """

    text: str
    cuts: npt.NDArray[np.int64]
    messages: Sequence[MessageSpan] = ()

    @classmethod
    def of(cls, prompt: RenderedPrompt, tokens: TokenText) -> "PromptText":
        """The text of a prompt. tokens: of its model."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        vocabulary = len(tokens.pieces)
        parts = [decoder.decode(tokens.pieces[i] if i < vocabulary else UNKNOWN) for i in prompt.token_ids.tolist()]
        parts[-1] += decoder.decode(b"", final=True)
        text, cuts = "".join(parts), np.cumsum([0, *map(len, parts)])
        return cls(text, cuts, prompt.message_spans())


def read_token_text(model: str) -> TokenText:
    """The texts of a model's tokens. model: a folder or a hub name. Raises ModelError if its tokenizer has none."""
    try:
        return TokenText.of(model)
    except ModelError as error:
        raise ModelError(f"the explain view cannot show the text of this model's tokens: {error}") from None


def explain_page(
    explanation: Mapping[str, Any], prompt: PromptText, *, title: str = TITLE, notes: Sequence[tuple[str, str]] = ()
) -> str:
    """The page as HTML in ASCII.

    explanation: as `Explained.as_json` or the endpoint gives it. notes: names and texts to show above the prompt.
    Raises InvalidRequestError if the text does not fit the explanation, or if the explanation has no spans.
    """
    data = json.dumps(_data(explanation, prompt, notes))
    for character in "<>&":
        data = data.replace(character, f"\\u{ord(character):04x}")
    shown = html.escape(visible(title)).encode("ascii", "xmlcharrefreplace").decode()
    template = files(__package__).joinpath("template.html").read_text(encoding="utf-8")
    before, after = template.split("@DATA@")
    return before.replace("@TITLE@", shown) + data + after


def visible(text: str) -> str:
    """`text` with a name in place of each character that is invisible, a control or not valid: U+202E, for example."""
    return _NAMED.sub(lambda match: f"\u27e6U+{ord(match[0]):04X}\u27e7", text)


def _data(explanation: Mapping[str, Any], prompt: PromptText, notes: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """What the page's script reads. A piece is [start, end, group, unit, text]; it lies in one group and one unit."""
    if not explanation.get("spans"):
        raise InvalidRequestError("the explanation has no spans: its prompt ran dense")
    tokens, units = int(explanation["prompt_tokens"]), np.asarray(explanation["units"], np.int64)
    if prompt.cuts.shape != (tokens + 1,):
        raise InvalidRequestError(f"the prompt's text has {prompt.cuts.size - 1} tokens, the selection has {tokens}")
    reasons = [span["reason"] for span in explanation["spans"]]
    names = [name for name in dict.fromkeys((*REASONS, *reasons)) if name in reasons]
    groups = np.full(tokens, len(names))
    for span in explanation["spans"]:
        groups[span["start"] : span["end"]] = names.index(span["reason"])
    described = [
        {"name": name, "label": LABELS.get(name, name), "text": visible(REASONS.get(name, "")), "tokens": int(count)}
        for name, count in zip(names, np.bincount(groups, minlength=len(names)), strict=False)
    ]
    return {
        "tokens": tokens,
        "scores": explanation["unit_scores"],
        "groups": [*described, _DROPPED | {"tokens": int((groups == len(names)).sum())}],
        "pieces": _pieces(groups, units, prompt),
        "messages": [{"role": visible(m.role), "start": m.start, "end": m.end} for m in prompt.messages],
        "facts": _facts(explanation),
        "notes": [(visible(name), visible(text)) for name, text in notes],
        "details": [
            *((name, visible(json.dumps(value))) for name, value in explanation["options"].items()),
            *((f"time of {name}", f"{ms:.1f} ms") for name, ms in explanation["timings_ms"].items()),
        ],
    }


def _pieces(groups: npt.NDArray[np.int_], units: npt.NDArray[np.int64], prompt: PromptText) -> list[list[Any]]:
    """The prompt cut where the group, the unit or the message changes. units: their first tokens."""
    cut = np.r_[True, groups[1:] != groups[:-1]]
    cut[units] = True
    for message in prompt.messages:
        cut[[edge for edge in (message.start, message.end) if edge < groups.size]] = True
    edges = [*np.flatnonzero(cut).tolist(), groups.size]
    cuts = prompt.cuts.tolist()
    unit_of = np.repeat(np.arange(units.size), np.diff(units, append=groups.size)).tolist()
    return [
        [start, end, int(groups[start]), unit_of[start], visible(prompt.text[cuts[start] : cuts[end]])]
        for start, end in pairwise(edges)
    ]


def _facts(explanation: Mapping[str, Any]) -> list[tuple[str, str]]:
    facts = [
        (f"{explanation['prompt_tokens']:,}", "tokens"),
        (f"{explanation['kept_tokens']:,}", f"kept ({100 * explanation['keep_rate']:.1f} %)"),
        (f"{100 * explanation['coverage']:.1f} %", "of the importance"),
    ]
    if explanation["reused_tokens"]:
        facts.append((f"{explanation['reused_tokens']:,}", "from an earlier kept prompt"))
    if read := explanation.get("catch_up"):
        facts.append((f"{read['tokens']:,}", f"of {read['of']:,} read after the answer ({visible(read['state'])})"))
    return facts
