"""The frame of a window is what a template writes around the text of a chat of one user message."""

import numpy as np

from router.prompt.rendered import JOINT, TEXT, frame_messages, frame_of, settings_of


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


def test_of_a_templates_arguments_its_settings_count_and_its_texts_do_not():
    settings = {"enable_thinking": False, "reasoning_effort": "high", "budget": 512, "temperature": 0.5, "none": None}
    texts = {"tools": [{"name": "read"}], "documents": [{"text": "long"}], "persona": "long " * 20, "extra": {"a": "b"}}
    assert settings_of({**settings, **texts}) == settings
