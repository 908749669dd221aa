"""The frame of a window: what the chat template writes around a text in a chat of one user message.

The speculator reads a window of a prompt as such a chat, with the question after the text
(`speculator_service.reading`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from kv_transfer.layout import Frame

TEXT = "\U000f0000\U000f0001"
"""Stands for the text: characters without a meaning (Unicode's private use area), which templates copy."""
JOINT = "\n\n"
LONGEST_SETTING = 64
"""Characters. A longer argument of a chat template is a text."""


def frame_messages() -> list[dict[str, str]]:
    """The chat that is to be rendered for `frame_of`."""
    return [{"role": "user", "content": TEXT}]


def settings_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a chat template that are settings: switches, numbers and short words.

    The others are texts that it writes into the prompt, such as tools and documents. They are protected there. In the
    frame, every window would repeat them.
    """
    return {name: value for name, value in arguments.items() if _is_setting(value)}


def _is_setting(value: Any) -> bool:
    return value is None or isinstance(value, int | float) or (isinstance(value, str) and len(value) <= LONGEST_SETTING)


def frame_of(rendered: str | None, encode: Callable[[str], Sequence[int]]) -> Frame | None:
    """The frame, from the rendered `frame_messages`; None if the template changes the text.

    encode: the token ids of a text, without those that a tokenizer adds around it.
    """
    head, found, tail = (rendered or "").partition(TEXT)
    if not found:
        return None
    return Frame(*(np.array(encode(part), np.int32) for part in (head, JOINT, tail)))
