"""The frame of a window is what a template writes around the text of a chat of one user message."""

import numpy as np

from router.prompt.frame import JOINT, TEXT, frame_messages, frame_of


def encode(text):
    return [ord(character) for character in text]


def test_a_frame_is_what_stands_around_the_text():
    [message] = frame_messages()
    frame = frame_of(f"<s>[user] {message['content']}</s>[assistant]", encode)
    assert [part.tolist() for part in (frame.head, frame.joint, frame.tail)] == [
        encode(part) for part in ("<s>[user] ", JOINT, "</s>[assistant]")
    ]
    assert frame.head.dtype == np.int32


def test_a_template_that_changes_the_text_has_none():
    assert frame_of(f"<s>{TEXT[0]}</s>", encode) is None
    assert frame_of(None, encode) is None
