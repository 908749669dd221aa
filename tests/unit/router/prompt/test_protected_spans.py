"""The parts of a chat prompt: contents of messages may be dropped, the text around them and the question never."""

import json
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from kv_transfer.arrays import mask_of
from router.options.request import PrefillOptions
from router.prompt.contents import MarkedChat, without_marks
from router.prompt.markers import messages_with_keeps
from router.prompt.protected_spans import chat_chars
from router.prompt.task.blocks import SHORT_TEXT
from tests.reference.tokenizers_by_kind import model_without_weights
from tests.unit.router.chats import prompt_spans
from tests.unit.router.conftest import MODELS

LONG = "The dog chased a grey leaf across the bridge. " * (SHORT_TEXT // 40)
QUESTION = "What is the price of the golden kettle?"


ALL = PrefillOptions(keep_short=0)
"""Without the rule for short messages."""


def rendered(messages, tools="", contents=str.strip):
    """A small chat template: tools, then the role and content of each turn, then the start of the assistant's turn."""
    turns = "".join(f"<{m['role']}>{contents(_joined(m['content']))}</s>" for m in messages)
    return f"{tools}{turns}<assistant>"


def _joined(content):
    """The texts of a content, as many templates write them; another part is a tag."""
    parts = content if isinstance(content, list) else [content or ""]
    texts = [part if isinstance(part, str) else part.get("text", "<image>") for part in parts]
    return "".join(text.strip() for text in texts)


class Chat:
    """Messages, rendered by `template`, with the places of their contents."""

    def __init__(self, messages, template=rendered, options=ALL, **rest):
        asked, keeps = messages_with_keeps(messages)
        self.text = template(without_marks(asked, keeps) if keeps else messages, **rest)
        marked = MarkedChat(asked, self.text, keeps)
        self.contents = marked.contents(template(marked.messages, **rest))
        self.options = options
        self.chars = chat_chars(self.text, self.contents, options, {})

    def dropped(self):
        """The parts of the text that may be dropped."""
        return [self.text[start:end] for (start, end), _ in self.chars.compressible]

    def tasks(self):
        """The texts that can be the task."""
        return [self.text[slice(*task)] for task in self.chars.tasks]

    def spans(self, offsets):
        return prompt_spans(len(offsets), self.options, self.contents, self.text, offsets)

    def droppable(self, offsets):
        """Which tokens a selection may drop, bool [M]. The first token is protected whatever it is."""
        return ~mask_of(self.spans(offsets).layout.protected, len(offsets))


def letters(text):
    """One token per character."""
    return [(i, i + 1) for i in range(len(text))]


def user(content):
    return {"role": "user", "content": content}


def assistant(content):
    return {"role": "assistant", "content": content}


SYSTEM = {"role": "system", "content": "Be short. " + LONG}


def test_earlier_turns_are_material_and_the_rest_is_not():
    messages = [SYSTEM, user("One."), {"role": "tool", "content": "Two."}, assistant("Three."), user(QUESTION)]
    assert Chat(messages, tools="{tool: Two}").dropped() == ["One.", "Two.", "Three."]


def test_tool_results_after_the_question_are_material():
    messages = [user(QUESTION), assistant(""), {"role": "tool", "content": LONG}]
    assert Chat(messages).dropped() == [LONG.strip()]


@pytest.mark.parametrize("role", ["system", "developer"])
def test_system_prompts_stay_wherever_they_stand(role):
    messages = [user("One."), {"role": role, "content": LONG}, user(QUESTION)]
    assert Chat(messages).dropped() == ["One."]


def test_a_short_last_turn_is_all_question():
    assert Chat([user(QUESTION)]).dropped() == []
    just_short = [user("a\n" + "b" * (SHORT_TEXT - 2))]
    assert Chat(just_short).dropped() == []


@pytest.mark.parametrize("content", [f"{LONG}\n{QUESTION}", f"{QUESTION}\n\n{LONG}", f"{LONG}\n{QUESTION}\n{LONG}"])
def test_of_a_long_turn_the_task_stays_wherever_it_stands(content):
    dropped = "".join(Chat([user(content)]).dropped())
    assert QUESTION not in dropped
    assert dropped.replace("\n", "").strip() == content.replace("\n", "").replace(QUESTION, "").strip()


def test_a_long_text_without_speech_may_be_dropped():
    assert Chat([user(LONG)]).dropped() == [LONG.strip()]
    assert Chat([user(f"A title\n{LONG}")]).dropped() == [f"\n{LONG.strip()}"]


def test_a_short_part_is_speech():
    parts = [{"type": "text", "text": LONG}, {"type": "image_url", "image_url": {}}, {"type": "text", "text": QUESTION}]
    assert Chat([user(parts)]).dropped() == [LONG.strip()]
    parts[2]["text"] = f"{LONG}\n{QUESTION}"
    assert Chat([user(["Title.", parts[2]])]).dropped() == [f"{LONG}\n"]


def test_a_part_with_a_keep_of_its_own_is_no_speech():
    parts = [
        {"type": "text", "text": "Which words? " * 9, "keep": 0.5},
        {"type": "text", "text": f"{LONG}\n{QUESTION}"},
    ]
    assert Chat([user(parts)]).dropped() == [("Which words? " * 9).strip(), f"{LONG}\n"]


def test_a_note_of_the_client_after_a_tool_s_result_leaves_the_task_where_it_is():
    messages = [
        user(QUESTION),
        assistant(""),
        {"role": "tool", "content": LONG},
        user("Please note that all answers are short and kind."),
    ]
    assert Chat(messages).dropped() == [LONG.strip()]
    assert QUESTION in Chat(messages).tasks()
    # Without the tool, the last turn has the task alone.
    messages[1:3] = [assistant("Four.")]
    assert Chat(messages).dropped() == [QUESTION, "Four."]


def test_repeated_contents_are_each_found_in_their_place():
    messages = [user("Yes."), assistant("Yes."), user("Yes."), assistant("No."), user("Yes.")]
    chat = Chat([*messages, user(QUESTION)])
    assert [chat.text[:start].count("Yes.") for (start, _), _ in chat.chars.compressible] == [0, 1, 2, 3, 3]
    assert chat.dropped() == ["Yes.", "Yes.", "Yes.", "No.", "Yes."]
    # The last turn asks nothing, so the task may be in one before it.
    assert Chat(messages).dropped() == ["Yes.", "No."]


def test_a_content_that_also_stands_in_the_template_is_found():
    messages = [user("weather"), assistant("<assistant>"), user(QUESTION)]
    chat = Chat(messages, tools="{tool: weather}")
    assert chat.dropped() == ["weather", "<assistant>"]
    assert chat.chars.compressible[0][0][0] == len("{tool: weather}<user>")


def test_a_content_that_the_template_rewrites_is_kept():
    """Also if the rewritten content's old form stands elsewhere in the prompt."""
    messages = [user("One."), assistant("Two."), user(QUESTION)]
    chat = Chat(messages, tools="{tool: Two.}", contents=str.upper)
    assert chat.dropped() == []
    assert [content.lost for content in chat.contents.contents] == [True, True, True]
    assert chat.spans(letters(chat.text)).lost == 3


def test_a_content_that_the_template_leaves_out_is_not_lost():
    messages = [user("One."), assistant("Two."), user(QUESTION)]
    chat = Chat(messages, lambda sent: rendered([m for m in sent if m["role"] == "user"]))
    assert chat.dropped() == ["One."]
    assert chat.spans(letters(chat.text)).lost == 0


def test_a_template_that_looks_at_the_text_leaves_the_chat_unmapped():
    """The marks change what such a template writes, so that nothing is known."""

    def counting(sent):
        return rendered(sent, tools=str(sum(len(m["content"]) for m in sent)))

    chat = Chat([user("One."), assistant("Two."), user(QUESTION)], counting)
    assert chat.contents.contents is None
    spans = chat.spans(letters(chat.text))
    assert spans.unmapped
    assert spans.layout.protected.tolist() == [[0, len(chat.text)]]


def test_a_template_that_writes_json_leaves_the_places_known():
    messages = [user("One."), {"role": "tool", "content": 'a "quoted"\nline'}, assistant("b"), user(QUESTION)]
    chat = Chat(
        messages, lambda given, **_: rendered(given, contents=lambda text: json.dumps(text, ensure_ascii=False))
    )
    assert chat.dropped() == ["One.", 'a \\"quoted\\"\\nline', "b"]


@pytest.mark.parametrize("content", [None, "", "  ", [], [{"type": "image_url"}]])
def test_a_message_without_text(content):
    messages = [user("One."), assistant(content), user(QUESTION)]
    assert Chat(messages).dropped() == ["One."]


def test_only_whole_tokens_are_dropped():
    chat = Chat([user("One."), user("Two?")])
    assert chat.text.startswith("<user>One.</s>")
    offsets = [(0, 6), (6, 8), (8, 10), (9, 12), (10, 10), (0, 0), (10, 14)]
    assert chat.droppable(offsets).tolist() == [False, True, True, False, False, False, False]


def test_the_question_has_all_tokens_that_share_a_character_with_it():
    chat = Chat([user("One."), user("Two?")])
    offsets = [(0, 6), (6, 19), (19, 21), (0, 0), (21, 23), (23, 26), (26, 28)]
    assert chat.spans(offsets).layout.questions.tolist() == [[2, 6]]
    # None of its characters is in a token.
    assert not len(chat.spans([(0, 6), (26, 28)]).layout.questions)


def test_of_a_chat_without_text_the_question_is_unknown():
    chat = Chat([user(QUESTION)])
    text, offsets = chat.text, letters(chat.text)
    assert chat.spans(offsets).layout.questions.tolist() == [[6, 6 + len(QUESTION)]]
    for known, ranges in ((None, None), (text, offsets[1:])):
        spans = prompt_spans(len(text), ALL, chat.contents, known, ranges)
        assert not len(spans.layout.questions)
        assert spans.unmapped


def test_raw_text_is_one_turn():
    text = f"{LONG}\n{QUESTION}"
    raw = prompt_spans(len(text), ALL, None, text, letters(text))
    assert raw.layout.questions.tolist() == [[len(LONG) + 1, len(text)]]
    assert raw.layout.protected.tolist() == [[0, 1], [len(LONG) + 1, len(text)]]
    assert not raw.unmapped
    ids = prompt_spans(len(text), ALL, None, None, None)
    assert (len(ids.layout.questions), ids.layout.protected.tolist()) == (0, [[0, 1]])


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (QUESTION, [QUESTION]),
        (f"  {QUESTION}\n", [QUESTION]),
        (f"Two lines.\n{QUESTION}", [QUESTION]),
        (f"{LONG}\n{QUESTION}", [QUESTION]),
        (f"{LONG}\n\n{QUESTION}  ", [QUESTION]),
        ([{"type": "text", "text": LONG}, {"type": "text", "text": f"Two lines.\n{QUESTION}"}], [QUESTION]),
        ([{"type": "text", "text": "A title."}, {"type": "text", "text": f"{LONG}\n{QUESTION}"}], [QUESTION]),
        (f"{QUESTION}\n\n{LONG}\n\n{QUESTION}", [QUESTION, QUESTION]),
        ("Kerro minulle, montako laatikkoa on.", ["Kerro minulle, montako laatikkoa on."]),
        (LONG, []),
        ("", []),
        (None, []),
    ],
)
def test_the_tasks_of_the_last_turn(content, expected):
    messages = [user(f"Not this. {LONG}"), assistant("Nor this."), user(content)]
    assert Chat(messages).tasks() == expected


@pytest.mark.parametrize("role", ["tool", "assistant"])
def test_a_tool_result_or_a_begun_answer_leaves_the_question_where_it_is(role):
    messages = [user(LONG), user(QUESTION), assistant("Let me see."), {"role": role, "content": "Three."}]
    assert Chat(messages).tasks() == [QUESTION]
    assert QUESTION not in "".join(Chat(messages).dropped())
    messages[-2:] = [{"role": "system", "content": "Be short."}]
    assert Chat(messages).tasks() == [QUESTION]


def test_a_question_that_the_template_rewrites_is_unknown():
    messages = [user("One."), assistant("Two."), user(QUESTION)]
    assert Chat(messages, contents=str.upper).tasks() == []


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
        question = message["role"] == "user" and not later_user and len(content) <= SHORT_TEXT
        if message["role"] != "system" and not question:
            allowed += range(len(text), len(text) + len(content))
        text += content + "</s>"
    text += "<assistant>"
    chat = Chat(messages, tools=tools)
    assert chat.text == text
    mask = chat.droppable(letters(text))
    assert set(np.flatnonzero(mask).tolist()) <= set(allowed)


def test_on_the_demo_template(document):
    tokenizer = AutoTokenizer.from_pretrained(MODELS / "target")
    system = {"role": "system", "content": "Answer with the value alone."}
    messages = [system, user(" Hello. "), assistant("Hello."), *document.messages]
    chat = Chat(messages, partial(tokenizer.apply_chat_template, add_generation_prompt=True, tokenize=False))
    text = chat.text
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    mask = chat.droppable(encoded.offset_mapping)
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
    chat = Chat(messages, partial(tokenizer.apply_chat_template, tokenize=False, add_generation_prompt=True))
    text = chat.text
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    offsets = encoded.offset_mapping
    [(start, end)] = chat.spans(offsets).layout.questions.tolist()
    covered = text[offsets[start][0] : offsets[end - 1][1]]
    assert covered.strip() == "And which dog sleeps near the mill?"
    # Without its first or last token a part of the question is missing.
    assert offsets[start + 1][0] > text.rindex("And")
    assert offsets[end - 2][1] < text.rindex("mill?") + len("mill?")


def test_a_note_of_the_client_at_the_end_of_a_result_is_kept():
    """Up to a size, and at the end alone."""
    note = "<system-reminder>\nThis file is generated.\n</system-reminder>"
    for result, kept in ((f"{LONG}{note}", note), (f"{note}{LONG}", ""), (LONG + note.replace("file", LONG), "")):
        messages = [user(QUESTION), assistant(""), {"role": "tool", "content": result}]
        assert Chat(messages).dropped() == [result.strip().removesuffix(kept) if kept else result.strip()]
