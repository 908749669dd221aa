"""The parts of a chat prompt: contents of messages may be dropped, the text around them and the question never."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from router.protection import LONG_TURN_CHARS, chat_chars, prompt_spans
from tests.reference.tokenizers_by_kind import model_without_weights
from tests.unit.router.conftest import MODELS

LONG = "The dog chased a grey leaf across the bridge. " * (LONG_TURN_CHARS // 40)
QUESTION = "What is the price of the golden kettle?"


def rendered(messages, tools="", contents=str.strip):
    """A small chat template: tools, then the role and content of each turn, then the start of the assistant's turn."""
    turns = "".join(f"<{m['role']}>{contents(m['content'])}</s>" for m in messages)
    return f"{tools}{turns}<assistant>"


def dropped(text, messages):
    """The parts of the text that may be dropped."""
    return [text[start:end] for start, end in chat_chars(text, messages).compressible]


def question(text, messages):
    """The question's text, None if it is unknown."""
    span = chat_chars(text, messages).question
    return None if span is None else text[slice(*span)]


def droppable(text, messages, offsets):
    """Which tokens a selection may drop, bool [M]. The first token is protected whatever it is."""
    protected = np.zeros(len(offsets), bool)
    for start, end in prompt_spans(len(offsets), [], messages, text, offsets).protected:
        protected[start:end] = True
    return ~protected


def user(content):
    return {"role": "user", "content": content}


def assistant(content):
    return {"role": "assistant", "content": content}


SYSTEM = {"role": "system", "content": "Be short. " + LONG}


def test_earlier_turns_are_material_and_the_rest_is_not():
    messages = [SYSTEM, user("One."), assistant("Two."), {"role": "tool", "content": "Three."}, user(QUESTION)]
    assert dropped(rendered(messages, tools="{tool: Two}"), messages) == ["One.", "Two.", "Three."]


def test_tool_results_after_the_question_are_material():
    messages = [user(QUESTION), assistant(""), {"role": "tool", "content": LONG}]
    assert dropped(rendered(messages), messages) == [LONG.strip()]


@pytest.mark.parametrize("role", ["system", "developer"])
def test_system_prompts_stay_wherever_they_stand(role):
    messages = [user("One."), {"role": role, "content": LONG}, user(QUESTION)]
    assert dropped(rendered(messages), messages) == ["One."]


def test_a_short_last_turn_is_all_question():
    assert dropped(rendered([user(QUESTION)]), [user(QUESTION)]) == []
    just_short = [user("a\n" + "b" * (LONG_TURN_CHARS - 2))]
    assert dropped(rendered(just_short), just_short) == []


def test_of_a_long_last_turn_the_last_line_stays():
    messages = [user(f"{LONG}\n{QUESTION}")]
    assert dropped(rendered(messages), messages) == [f"{LONG}\n"]
    assert dropped(rendered(messages), [user(f"  {LONG}\n{QUESTION}\n\n")]) == [f"{LONG.strip()} \n"]


@pytest.mark.parametrize("content", [LONG, f"A title\n{LONG}"])
def test_a_long_last_line_has_no_telling_end(content):
    messages = [user(content)]
    assert dropped(rendered(messages), messages) == [content.strip()]


def test_the_last_of_several_parts_is_the_question():
    parts = [{"type": "text", "text": LONG}, {"type": "image_url", "image_url": {}}, {"type": "text", "text": QUESTION}]
    text = f"<user>{LONG.strip()}<image>{QUESTION}</s>"
    assert dropped(text, [user(parts)]) == [LONG.strip()]
    # A long last part holds its own question, so the parts before it are material.
    parts[2]["text"] = f"{LONG}\n{QUESTION}"
    assert dropped(f"<user>Title. {parts[2]['text']}</s>", [user(["Title.", parts[2]])]) == ["Title.", f"{LONG}\n"]


def test_repeated_contents_are_each_found_in_their_place():
    messages = [user("Yes."), assistant("Yes."), user("Yes."), assistant("No."), user("Yes.")]
    text = rendered(messages)
    spans = chat_chars(text, messages).compressible
    assert [text[:start].count("Yes.") for start, _ in spans] == [0, 1, 2, 3]
    assert dropped(text, messages) == ["Yes.", "Yes.", "Yes.", "No."]


def test_a_content_that_could_stand_in_two_places_is_kept():
    messages = [user("weather"), assistant("Sunny."), user(QUESTION)]
    assert dropped(rendered(messages, tools="{tool: weather}"), messages) == ["Sunny."]
    assert dropped(rendered(messages), messages) == ["weather", "Sunny."]


def test_a_content_that_the_template_rewrites_is_kept():
    messages = [user("One."), assistant("Two."), user(QUESTION)]
    assert dropped(rendered(messages, contents=str.upper), messages) == []


@pytest.mark.parametrize("content", [None, "", "  ", [], [{"type": "image_url"}]])
def test_a_message_without_text(content):
    messages = [user("One."), assistant(content), user(QUESTION)]
    assert dropped(f"<user>One.</s><assistant></s><user>{QUESTION}</s>", messages) == ["One."]


def test_only_whole_tokens_are_dropped():
    text = "<user>One.</s><user>Two.</s>"
    offsets = [(0, 6), (6, 8), (8, 10), (9, 12), (10, 10), (0, 0), (10, 14)]
    mask = droppable(text, [user("One."), user("Two.")], offsets)
    assert mask.tolist() == [False, True, True, False, False, False, False]


def test_the_question_has_all_tokens_that_share_a_character_with_it():
    text = "<user>One.</s><user>Two.</s>"
    offsets = [(0, 6), (6, 19), (19, 21), (0, 0), (21, 23), (23, 26), (26, 28)]
    assert prompt_spans(7, [], [user("One."), user("Two.")], text, offsets).question == (2, 6)
    # None of its characters is in a token.
    assert prompt_spans(2, [], [user("One."), user("Two.")], text, [(0, 6), (26, 28)]).question is None


def test_of_a_chat_without_text_the_question_is_unknown():
    messages = [user(QUESTION)]
    text = rendered(messages)
    offsets = [(i, i + 1) for i in range(len(text))]
    assert prompt_spans(len(text), [], messages, text, offsets).question == (6, 6 + len(QUESTION))
    assert prompt_spans(len(text), [], messages, None, None).question is None
    assert prompt_spans(len(text), [], messages, text, offsets[1:]).question is None
    assert prompt_spans(len(text), [], None, text, offsets).question is None


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (QUESTION, QUESTION),
        (f"  {QUESTION}\n", QUESTION),
        (f"Two lines.\n{QUESTION}", f"Two lines.\n{QUESTION}"),
        (f"{LONG}\n{QUESTION}", QUESTION),
        (f"{LONG}\n\n{QUESTION}  ", QUESTION),
        (
            [{"type": "text", "text": LONG}, {"type": "text", "text": f"Two lines.\n{QUESTION}"}],
            f"Two lines.\n{QUESTION}",
        ),
        ([{"type": "text", "text": "A title."}, {"type": "text", "text": f"{LONG}\n{QUESTION}"}], QUESTION),
        (["One.", "Two."], "One.Two."),
        (LONG, None),
        ("", None),
        (None, None),
    ],
)
def test_the_question_of_the_last_turn(content, expected):
    """A short turn as a whole; of a long turn the last part or the last line, unless that is long itself."""
    messages = [user(f"Not this. {LONG}"), assistant("Nor this."), user(content)]
    parts = [
        p if isinstance(p, str) else p["text"] for p in (content if isinstance(content, list) else [content or ""])
    ]
    text = rendered([*messages[:-1], user("".join(part.strip() for part in parts))])
    assert question(text, messages) == expected


@pytest.mark.parametrize("role", ["tool", "assistant"])
def test_after_a_tool_result_or_a_begun_answer_there_is_no_question(role):
    messages = [user(LONG), user(QUESTION), assistant("Let me see."), {"role": role, "content": "Three."}]
    assert question(rendered(messages), messages) is None
    assert QUESTION not in "".join(dropped(rendered(messages), messages))
    messages[-2:] = [{"role": "system", "content": "Be short."}]
    assert question(rendered(messages), messages) == QUESTION


def test_a_question_that_the_template_rewrites_is_unknown():
    messages = [user("One."), assistant("Two."), user(QUESTION)]
    assert question(rendered(messages, contents=str.upper), messages) is None


# Only few letters, so that contents repeat each other, the roles and the tools.
CONTENTS = st.text("use r\n", max_size=6) | st.just("user") | st.just(LONG)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "tool", "system"]), "content": CONTENTS}),
    min_size=1,
    max_size=5,
)


@given(MESSAGES, st.text("use r", max_size=8))
def test_nothing_outside_contents_is_ever_dropped(messages, tools):
    """Each token is one character."""
    text, allowed = tools, []
    for i, message in enumerate(messages):
        text += f"<{message['role']}>"
        content = message["content"].strip()
        later_user = any(m["role"] == "user" for m in messages[i + 1 :])
        question = message["role"] == "user" and not later_user and len(content) <= LONG_TURN_CHARS
        if message["role"] != "system" and not question:
            allowed += range(len(text), len(text) + len(content))
        text += content + "</s>"
    text += "<assistant>"
    mask = droppable(text, messages, [(i, i + 1) for i in range(len(text))])
    assert set(np.flatnonzero(mask).tolist()) <= set(allowed)


def test_on_the_demo_template(document):
    tokenizer = AutoTokenizer.from_pretrained(MODELS / "target")
    system = {"role": "system", "content": "Answer with the value alone."}
    messages = [system, user(" Hello. "), assistant("Hello."), *document.messages]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    mask = droppable(text, messages, encoded.offset_mapping)
    pieces = [text[start:end] for start, end in encoded.offset_mapping]
    shown = "".join(piece if drop else "|" * (len(piece) > 0) for piece, drop in zip(pieces, mask, strict=True))
    stretches = [stretch.strip() for stretch in shown.split("|") if stretch.strip()]
    # The first word of a content shares its token with the space before it, and the space belongs to the template.
    assert stretches == [".", ".", document.document.removeprefix("The ")]
    assert 0.9 < mask.mean() < 1


TEMPLATES = {
    "chatml": (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "<|im_start|>assistant\n"
    ),
    "inst": (
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content | trim }} [/INST]"
        "{% else %}{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
    ),
    "header": (
        "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>"
        "{% endfor %}<|start_header_id|>assistant<|end_header_id|>\n\n"
    ),
    "turn": (
        "{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
        "{{ m.content | trim }}<end_of_turn>\n{% endfor %}<start_of_turn>model\n"
    ),
    "tool_call_start": (
        "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}\n<|end|>\n{% endfor %}<|assistant|>\n<think>\n"
    ),
}


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback", "trimmed"])
@pytest.mark.parametrize("template", TEMPLATES)
def test_the_question_on_several_templates_and_tokenizers(template, kind, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(model_without_weights(tmp_path / "model", kind))
    tokenizer.chat_template = TEMPLATES[template]
    tokenizer.bos_token = tokenizer.bos_token or "<s>"
    messages = [user(f"{LONG}\n{QUESTION}"), assistant("It costs 4821."), user("And which dog sleeps near the mill? ")]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids, offsets = encoded.input_ids, encoded.offset_mapping
    start, end = prompt_spans(len(ids), [], messages, text, offsets).question
    covered = text[offsets[start][0] : offsets[end - 1][1]]
    assert covered.strip() == "And which dog sleeps near the mill?"
    # Without its first or last token a part of the question is missing.
    assert offsets[start + 1][0] > text.rindex("And")
    assert offsets[end - 2][1] < text.rindex("mill?") + len("mill?")
