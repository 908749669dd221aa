"""Speech is found wherever it stands; what it is taken from is a text without structure, in three languages."""

import json

import pytest

from evals.tasks.forms import FORMS, LANGUAGES, form_prompts
from router.decision.guard import needs_whole_text
from router.prompt.task.speech import MOST_TASKS, Turn, find_speech, speech_of_turns
from router.prompt.task.words import asks, has_mark

PROMPTS = list(form_prompts(130, seed=1))


def turns_of(messages):
    """The contents of all messages as one text, and of each user's turn the ranges of its parts."""
    text, turns, before = "<|user|> ", [], ""
    for message in messages:
        content = message["content"]
        parts = [part["text"] for part in content] if isinstance(content, list) else [content]
        spans = []
        for part in parts:
            spans.append((len(text), len(text) + len(part)))
            text += part + "\n"
        text += "<|end|>\n"
        if message["role"] == "user":
            turns.append(Turn(spans, before == "tool"))
        before = message["role"]
    return text, turns


def found(messages):
    text, turns = turns_of(messages)
    speech = speech_of_turns(text, turns)
    return [text[start:end] for start, end in speech.spans], [text[start:end] for start, end in speech.tasks]


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda prompt: f"{prompt.form}-{prompt.language}")
def test_task_and_rules_are_speech_in_each_form(prompt):
    spans, tasks = found(prompt.messages)
    system = "".join(message["content"] for message in prompt.messages if message["role"] == "system")
    for text in (prompt.task, *prompt.rules):
        assert text in system or any(text in span for span in spans)
    assert any(prompt.task in task for task in tasks)


def test_most_of_a_document_is_no_speech():
    shares = []
    for prompt in PROMPTS:
        text, turns = turns_of(prompt.messages)
        shares.append(sum(end - start for start, end in speech_of_turns(text, turns).spans) / len(text))
    assert len(PROMPTS) == len(FORMS) * len(LANGUAGES)
    assert sum(shares) / len(shares) < 0.04
    assert max(shares) < 0.2


def test_a_document_alone_asks_nothing():
    [prompt] = [one for one in PROMPTS if (one.form, one.language) == ("document part, question part", "en")]
    document = prompt.messages[0]["content"][0]["text"]
    assert not find_speech(document, [(0, len(document))]).asks


def test_a_dialogue_is_not_taken_for_questions():
    lines = [f"ANNA: Did you see number {i}?\n\nBEN: Yes, I saw number {i} at the station." for i in range(60)]
    text = "\n\n".join(lines) + "\n\nHow many trains did Ben miss?"
    spans = find_speech(text, [(0, len(text))]).spans
    assert sum(end - start for start, end in spans) < 400
    assert text[slice(*spans[-1])].endswith("miss?")


@pytest.mark.parametrize("after", ["Thanks a lot for your help!", "Continue."])
def test_a_block_without_a_speaker_is_no_part_of_a_dialogue(after):
    lines = [f"ANNA: Did you see number {i}?\n\nBEN: Yes, I saw number {i} at the station. Why?" for i in range(60)]
    asked = "How many trains did Ben miss?"
    text = "\n\n".join([*lines, asked, after])
    speech = find_speech(text, [(0, len(text))])
    assert asked in [text[slice(*task)] for task in speech.tasks]
    assert sum(end - start for start, end in speech.spans) < 400


@pytest.mark.parametrize("between", ["\n", "\n\n"])
@pytest.mark.parametrize(
    "asked",
    [
        "Question: which platform was closed? Answer in a few words.",
        "Which platform was closed, and why?",
        "Summarize what was said about the platform.",
        "Ben: Which platform was closed, and why?",
    ],
)
def test_what_speakers_of_the_text_ask_is_not_the_task(between, asked):
    """The control: as one more paragraph of a speaker, the last question leaves the first one a task."""
    said = [f"Ben: We closed platform {number} because of the long works on the roof." for number in range(60)]
    said = [line if number % 2 else line.replace("Ben", "Anna Lee MP") for number, line in enumerate(said)]
    first = "Anna Lee MP: 1. What steps does the railway take to open the station?"
    text = between.join([first, *said]) + "\n\n" + asked
    tasks = [text[slice(*task)] for task in find_speech(text, [(0, len(text))]).tasks]
    assert tasks[-1] == asked
    assert (len(tasks) == 2) == asked.startswith("Ben")
    in_chat = find_speech(f"[INST] {text}", [(len("[INST] "), len("[INST] ") + len(text))])
    assert len(in_chat.tasks) == len(tasks), "a chat template may begin the line"


def test_a_question_inside_the_text_is_no_task_beside_a_labelled_one():
    text = "".join(f"<P> The weight of part {number} is given in the list below . </P> " for number in range(90))
    text = text.replace("part 60 is", "Part Sixty ? It is") + "\n\nQuestion: weight of part 12 Answer in a few words."
    [task] = [text[slice(*task)] for task in find_speech(text, [(0, len(text))]).tasks]
    assert task.startswith("Question: weight")


FAQ = "\n\n".join(f"How do I close gate {number}?\nTurn the wheel {number} times to the left." for number in range(60))
STORY = "\n".join(f'"Did you count the geese of pen {n}?" the farmer asked.\n\nHe wrote it down.\n' for n in range(60))


def tasks_of(text):
    return [text[slice(*task)] for task in find_speech(text, [(0, len(text))]).tasks]


MEETING = "\n\n".join(f"{who}: Did you see train {n}? It was late." for n in range(60) for who in ("Anna", "Ben"))


@pytest.mark.parametrize("text", [FAQ, MEETING])
def test_a_question_between_those_of_the_text_is_the_task(text):
    asked = "Which way is best?"
    assert tasks_of(f"{text}\n\n{asked}\n\n{text}") == [asked]


@pytest.mark.parametrize("asked", ["How long may gate 12 be open?", "Question: how is gate 12 closed?\nIn few words."])
def test_headings_that_ask_are_no_tasks(asked):
    """The control: in the form of the headings, the last question leaves them tasks."""
    assert tasks_of(f"{FAQ}\n\n{asked}") == [asked]
    assert len(tasks_of(f"{FAQ}\n\nHow is gate 12 closed?\nIn a few words.")) > 1


@pytest.mark.parametrize("asked", ["Who has most geese?", "Question: who has most geese?\nA. The farmer\nB. A miller"])
def test_quoted_questions_of_a_story_are_no_tasks(asked):
    """The control: a question of the user that quotes one stays a task."""
    assert tasks_of(f"{STORY}\n\n{asked}") == [asked]
    quoting = 'He asks "Did you count the geese of pen 7?"'
    assert tasks_of(f"{STORY}\n\n{quoting}")[-1] == quoting


def test_beside_a_labelled_task_short_lines_of_the_text_are_none():
    """The control: without its label, it asks nothing, and any of the short lines can be the task."""
    clause = "The seller delivers lot {n} to the buyer at the harbour of the town in May."
    lines = "\n\n".join(clause.format(n=n) for n in range(90))
    text = f"{lines}\n\nSignature Page to Letter Agreement\n\n"
    asked = "the parties who signed this contract"
    assert tasks_of(f"{text}Question: {asked}") == [f"Question: {asked}"]
    assert len(tasks_of(text + asked)) > 1


@pytest.mark.parametrize("asked", ["Summarize what was said about platform 12.", "Platform twelve and its roof"])
def test_a_sentence_of_a_speaker_is_no_task(asked):
    """The control: the same sentence without the speaker's name."""
    first = "Anna Lee: Good morning. Can I welcome all members to the meeting? " + "It is long and public. " * 80
    lines = [first, *(f"{who}: We closed platform {n} for works." for n in range(40) for who in ("Anna Lee", "Ben"))]
    assert tasks_of("\n".join(lines) + f"\n\n{asked}") == [asked]
    lines[0] = first.removeprefix("Anna Lee: ")
    assert tasks_of("\n".join(lines) + f"\n\n{asked}") != [asked]


@pytest.mark.parametrize(
    ("text", "is_task"),
    [
        ("What was the proposed structure of the net.", True),
        ("How do the members see the plan.", True),
        ("What we did that day was for the best.", False),
        ("When he came home he slept.", False),
    ],
)
def test_a_question_may_end_with_a_full_stop(text, is_task):
    assert asks(text) == is_task


@pytest.mark.parametrize("name", ["", "Task: ", "Here is what my client wants to know: "])
def test_a_task_before_a_dialogue_stays_one(name):
    lines = "\n".join(f"Ben: We closed platform {number} because of the works." for number in range(90))
    first = f"{name}Which platform was closed last?"
    text = f"{first}\n\n{lines}\n\nIs that clear?"
    assert first in [text[slice(*task)] for task in find_speech(text, [(0, len(text))]).tasks]


DOCUMENT = "\n\n".join(
    f"The weight of the {word} is {number}." for number, word in enumerate(["kettle", "drill"] * 100)
)
RULES = [f"- Rule {number}: write it so that every reader can follow what you say." for number in range(12)]
TASK = "What is the weight of the compass?"


def speech_of(text):
    speech = find_speech(text, [(0, len(text))])
    return "".join(text[slice(*span)] for span in speech.spans), [text[slice(*task)] for task in speech.tasks]


@pytest.mark.parametrize("form", ["{rules}\n\n{text}\n\n{task}", "{text}\n\n{task}\n\n{rules}\n\nThanks!"])
def test_a_list_of_rules_is_speech(form):
    text = form.format(rules="Rules:\n" + "\n".join(RULES), text=DOCUMENT, task=TASK)
    spans, _ = speech_of(text)
    assert all(rule in spans for rule in [*RULES, TASK])


def test_instructions_around_a_marked_text_are_speech_as_a_whole():
    paragraphs = "\n\n".join(
        f"Paragraph {number} of the notes about the reader. " + "It is plain. " * 20 for number in range(9)
    )
    text = f"{paragraphs}\n\n<text>\n{DOCUMENT * 6}\n</text>\n\n{TASK}"
    spans, tasks = speech_of(text)
    assert paragraphs.strip() in spans
    assert TASK in tasks


def test_short_strings_of_a_json_prompt_are_speech():
    text = json.dumps({"task": TASK, "rules": RULES, "text": DOCUMENT})
    spans, tasks = speech_of(text)
    assert all(rule in spans for rule in RULES)
    assert any(TASK in task for task in tasks)
    assert "weight of the drill" not in spans


@pytest.mark.parametrize("tag", ["prompt", "input"])
def test_a_tag_around_the_whole_prompt_is_opened(tag):
    spans, tasks = speech_of(f"<{tag}>\n{DOCUMENT}\n\n{TASK}\n</{tag}>\nBe short.")
    assert tasks[-1].startswith(TASK)
    assert "Be short." in spans
    assert len(spans) < 400


def test_a_long_reminder_of_the_client_is_no_task():
    note = "<system-reminder>\n" + "Do not mention this note to the reader. " * 20 + "\n</system-reminder>"
    text = f"{TASK}\n{note}"
    turns = [Turn([(0, len(TASK))]), Turn([(len(TASK) + 1, len(text))], after_tool=True)]
    speech = speech_of_turns(text, turns)
    assert TASK in [text[slice(*task)] for task in speech.tasks]
    assert speech.spans == [(0, len(TASK)), (len(TASK) + 1, len(text))]


def test_a_turn_that_asks_ends_the_search():
    text = f"What was it before?\n{TASK}"
    turns = [Turn([(0, 19)]), Turn([(20, len(text))])]
    assert speech_of_turns(text, turns).spans == [(20, len(text))]


def test_speech_around_the_material_of_an_earlier_turn_stays_speech():
    """So the rules of a first message hold, and the windows of its document are the same in later turns."""
    document = DOCUMENT * (3000 // len(DOCUMENT) + 1)
    first = {"role": "user", "content": f"Answer in French. Read this report first.\n\n{document}\n\n{TASK}"}
    later = [{"role": "assistant", "content": "Oui."}, {"role": "user", "content": "What was it before?"}]
    alone, both = found([first]), found([first, *later])
    assert [alone[0][0], alone[0][-1]] == ["Answer in French. Read this report first.", TASK]
    assert both == ([*alone[0], "What was it before?"], ["What was it before?"])
    assert both[0] == found([first, *later * 70])[0][: len(both[0])], "however long ago"


def test_more_tasks_than_windows_have_room_for_are_joined():
    text = "\n".join(f"What is the weight of number {number}?" for number in range(30))
    for raw in (False, True):
        tasks = find_speech(text, [(0, len(text))], raw=raw).tasks
        assert len(tasks) == MOST_TASKS
        assert all(f"number {number}?" in "".join(text[slice(*task)] for task in tasks) for number in range(30))
    halves = [Turn([(0, len(text) // 2)], after_tool=True), Turn([(len(text) // 2, len(text))], after_tool=True)]
    assert len(speech_of_turns(text, halves).tasks) == MOST_TASKS


@pytest.mark.parametrize("lines", [1, 9])
def test_a_line_between_long_paragraphs_is_speech_if_it_asks_or_has_few_like_it(lines):
    """Also in a text that has many questions of its own."""
    paragraph = "Did anybody see it? Nobody knows, and the notes say nothing about it. " * 60
    for line in (TASK, "The compass was seen in the hall."):
        spans, _ = speech_of(f"{paragraph}\n\n{line}\n\n" * lines + paragraph)
        assert (line in spans) is (lines == 1)


PARAGRAPHS = "\n\n".join(
    " ".join(
        f"The {word} of number {n} was sold in the harbour at noon." for word in ("drill", "kettle", "rope", "lamp")
    )
    for n in range(40)
)
LONG_ORDER = "You are reading notes for a museum. " + "Write what the notes say, and do not guess what they mean. " * 25
FORMS_OF_PEOPLE = {
    "no word that we know, first": ("Cho biết trọng lượng của la bàn.\n\n{text}", "Cho biết trọng lượng của la bàn."),
    "no word that we know, last": ("{text}\n\nPodajcie wagę kompasu z notatek.", "Podajcie wagę kompasu z notatek."),
    "no word that we know, between": ("{text}\n\nบอกน้ำหนักของเข็มทิศ\n\n{text}", "บอกน้ำหนักของเข็มทิศ"),
    "no sentence": ("{text}\n\nweight compass, in kilograms", "weight compass, in kilograms"),
    "1,500 characters, first": (f"{LONG_ORDER}\n\n{{text}}", LONG_ORDER.strip()),
    "under a rule": ("{text}\n------------\nREMEMBER: no guesses.\n\n" + TASK, "REMEMBER: no guesses."),
    "a label of two words": ("{text}\n\nUser task: the weight of it\nAnswer:", "User task: the weight of it"),
    "among blank lines": (
        f"Rules:\n\n{RULES[0]}\n\n{RULES[1]}\n\n{{text}}\n\n{TASK}",
        f"{RULES[0]}\n\n{RULES[1]}",
    ),
}


@pytest.mark.parametrize("form", FORMS_OF_PEOPLE)
def test_speech_is_found_by_its_place_and_its_size(form):
    template, expected = FORMS_OF_PEOPLE[form]
    spans, tasks = speech_of(template.format(text=PARAGRAPHS))
    assert expected in spans
    assert len(spans) < len(expected) + 1500
    assert form[:4] in ("unde", "amon") or any(expected in task for task in tasks)


ON_ITS_LINE = (
    "Summarize the following text: {text}",
    "Rewrite this in simpler words. {text}",
    "Proofread this: {text}",
    "I have a long report. Please translate it into plain German: {text}",
    "\u8bf7\u603b\u7ed3\u4ee5\u4e0b\u5185\u5bb9\uff1a{text}",
    "Streszczenie poni\u017cszego tekstu: {text}",
    "{text} TL;DR",
    "{text} Translate to German",
    "{text} Summarize this.",
    "{text}\nSummarize this.",
    "{text}\n\nTL;DR",
)


@pytest.mark.parametrize("form", ON_ITS_LINE)
def test_an_instruction_on_the_line_of_the_text_is_the_task(form):
    """And the guard sees it."""
    line = PARAGRAPHS.replace("\n\n", " ")
    asked = form.replace("{text}", "").strip()
    spans, tasks = speech_of(form.format(text=line))
    assert tasks == [asked]
    assert len(spans) <= len(asked) + 1
    assert needs_whole_text(tasks[0])
    assert speech_of(line) == ("", []), "the control: a line that asks nothing"


@pytest.mark.parametrize("last", ["Continue.", "Thanks!", "Please go on.", "Answer:"])
def test_what_belongs_to_an_earlier_task_is_none(last):
    _, tasks = speech_of(f"{PARAGRAPHS.replace(chr(10) * 2, ' ')}\n\n{last}")
    assert tasks == []


@pytest.mark.parametrize("mark", ["?", "\uff1f", "\u061f", "\u055e", "\u1367", "\u037e"])
def test_question_marks_of_all_scripts(mark):
    asked = f"\u039a\u03b1\u03b9 \u03c0\u03cc\u03c3\u03bf{mark}"
    assert [has_mark(text) for text in (asked, "\u03c0\u03cc\u03c3\u03bf;", "no; yes")] == [
        True,
        True,
        False,
    ]


LINES_ALONE = PARAGRAPHS.replace("\n\n", " ").replace(". ", ".\n")


@pytest.mark.parametrize(
    ("form", "rules"),
    [
        ("{task}\nOne word, please.\nNo guesses.\nText:\n{text}", ["One word, please.", "No guesses."]),
        ("{text}\n{task}\nOne word, please.\nNo guesses.\nAnswer:", ["One word, please.", "No guesses."]),
        ("{text}\n{task}\nRules:\n- one word\n- digits\n- no guesses\n- no verbs\nAnswer:", ["- one word\n- digits"]),
        ("task: {task}\nrules:\n  - one word\n  - digits\ntext: |\n{text}", ["- one word\n  - digits"]),
        ("{task}\nNotes:\n- {text}", []),
    ],
)
def test_lines_without_a_blank_one_between(form, rules):
    text = LINES_ALONE if "- {text}" not in form else LINES_ALONE.replace("\n", "\n- ")
    spans, tasks = speech_of(form.format(task=TASK, text=text))
    assert all(rule in spans for rule in rules)
    assert any(TASK in task for task in tasks)
    assert len(spans) < 400


def test_the_questions_of_an_exam_are_material():
    exam = "\n\n".join(f"{n}. Item {n} is a kettle.\nA) yes, it is\nB) no, it is a drill\nAnswer: A" for n in range(90))
    spans, tasks = speech_of(f"{exam}\n\n{TASK}")
    assert len(spans) < 800
    assert TASK in tasks


def test_long_members_of_a_json_prompt_are_material():
    """Also lists of short strings; in any order and depth. Control: a text that only begins and ends like JSON."""
    value = {"passages": PARAGRAPHS.split("\n\n"), "options": {"style": "be short"}, "query": TASK}
    for prompt in (
        value,
        {"body": value},
        [{"content": PARAGRAPHS}, {"role": "user", "content": TASK}],
    ):
        spans, tasks = speech_of(json.dumps(prompt))
        assert TASK in spans
        assert any(TASK in task for task in tasks)
        assert ("be short" in spans) is (isinstance(prompt, dict))
        assert "kettle" not in spans
    spans, _ = speech_of(f"[from: web]\n\n{PARAGRAPHS}\n\n{TASK}\n\n[end]")
    assert TASK in spans


def test_the_system_has_the_task_if_no_turn_asks():
    system, rest = f"You are an archivist. You are kind.\n{TASK}", PARAGRAPHS
    text = f"{system}\n\n{rest}"
    turns = [Turn([(len(system) + 2, len(text))])]
    assert [text[slice(*one)] for one in speech_of_turns(text, turns, [(0, len(system))]).tasks] == [TASK]
    assert speech_of_turns(text, turns, [(0, text.index("\n"))]).tasks == [], "a persona is no task"
    asked = [*turns, Turn([(len(system) - len(TASK), len(system))])]
    assert len(speech_of_turns(text, asked, [(0, len(system))]).tasks) == 1


def test_prose_that_begins_like_a_question_is_no_speech():
    told = [f"When the rain of day {number} stopped, the dog went home and slept. " * 3 for number in range(4)]
    plain = [f"The weight of the drill of day {number} is small. " * 5 for number in range(30)]
    text = "\n\n".join([*plain[:15], *told, *plain[15:], TASK])
    spans, tasks = speech_of(text)
    assert tasks == [TASK]
    assert "rain" not in spans


def test_many_short_parts_are_one_text():
    """A client may send each passage as a content part."""
    passages = [f"Passage {number}: the weight of the drill is {number}." for number in range(300)]
    text, parts = "", []
    for part in [*passages, TASK]:
        parts.append((len(text), len(text) + len(part)))
        text += part + "\n"
    speech = find_speech(text, parts)
    assert [text[slice(*task)] for task in speech.tasks] == [TASK]
    assert sum(end - start for start, end in speech.spans) < 300


@pytest.mark.parametrize("form", ["{task}\n\n{text}", "{text}\n\n{task}", "{text}\n\n{task}\n\nAnswer:"])
def test_of_a_raw_prompt_what_asks_is_speech(form):
    for size in (5, 200):
        document = "\n\n".join(f"The weight of the drill is {number}." for number in range(size))
        text = form.format(task=TASK, text=document)
        speech = find_speech(text, [(0, len(text))], raw=True)
        assert [text[slice(*task)] for task in speech.tasks] == [TASK]
        assert sum(end - start for start, end in speech.spans) < 250


@pytest.mark.parametrize("heading", ["## Passage {}", "# {}. Part", "Document {}:", "### Chunk {} (p. 3)"])
def test_numbered_headings_of_the_material_announce_nothing(heading):
    """Control: sections of a client, with headings of their own, are speech."""
    body = "The lantern of the pilot was painted green before it was sold to the harbour. " * 3
    passages = "\n\n".join(f"{heading.format(number)}\n{body}" for number in range(1, 31))
    spoken, _ = speech_of(f"{passages}\n\nWhat colour is the lantern?")
    assert len(spoken) < 500
    sections = "\n\n".join(f"## {name}\nNever write more than {name} words." for name in ("Role", "Rules", "Output"))
    spoken, _ = speech_of(f"{sections}\n\n## Context\n{passages}\n\nWhat colour is the lantern?")
    assert all(f"more than {name} words" in spoken for name in ("Role", "Rules", "Output"))


RULE = "- Never rename the lamp of the second floor without a test.\n"
INSTRUCTIONS = {
    "Claude Code": "<system-reminder>\n# claudeMd\nContents of /w/CLAUDE.md:\n\n{rules}\n</system-reminder>",
    "Codex": "# AGENTS.md instructions for /w\n\n<INSTRUCTIONS>\n{rules}\n</INSTRUCTIONS>",
    "Codex, older": "<user_instructions>\n{rules}\n</user_instructions>",
    "Cursor": "<always_applied_workspace_rules>\n{rules}\n</always_applied_workspace_rules>",
    "Cline": "<environment_details>\n{rules}\n</environment_details>",
    "OpenHands": "<REPOSITORY_INSTRUCTIONS>\n{rules}\n</REPOSITORY_INSTRUCTIONS>",
    "Copilot": "<reminderInstructions>\n{rules}\n</reminderInstructions>",
    "a file": "Instructions from: /w/AGENTS.md\n{rules}",
}


@pytest.mark.parametrize("client", INSTRUCTIONS)
@pytest.mark.parametrize("turns", ["own", "part", "string"])
def test_instructions_of_a_client_are_kept_whole(client, turns):
    """As a message of their own, as a part beside the task, and before it in one text."""
    rules = INSTRUCTIONS[client].format(rules=RULE * 130)
    assert 7800 < len(rules) < 8300
    if turns == "own":
        messages = [{"role": "user", "content": rules}, {"role": "user", "content": TASK}]
    else:
        parts = [{"type": "text", "text": rules}, {"type": "text", "text": TASK}]
        messages = [{"role": "user", "content": parts if turns == "part" else f"{rules}\n\n{TASK}"}]
    spans, tasks = found(messages)
    assert any(rules in span for span in spans)
    assert any(TASK in task for task in tasks)


def test_instructions_are_kept_up_to_a_size():
    """A text that quotes such tags is protected up to the same size, however many there are, of any names."""
    long = INSTRUCTIONS["Claude Code"].format(rules=RULE * 170)
    many = "\n".join(f"Page {n}\n<p{n}_rules>\n{RULE * 9}</p{n}_rules>\n" + "It is plain. " * 9 for n in range(90))
    for text in (long, many):
        spans, _ = speech_of(f"{text}\n\n{PARAGRAPHS}\n\n{TASK}")
        assert TASK in spans
        assert len(spans) < 9216 + 2 * 4096


def test_headings_that_alternate_with_their_text_are_no_speech() -> None:
    """Mails with a line before each quote, or articles with a title: only the edges are speech, not a chain of them."""
    mails = [
        f"On Tue, {n} Mar 2026, Person {n} wrote:\n\n> {f'The lamp of room {n} was checked. ' * 12}" for n in range(40)
    ]
    text = "\n\n".join([*mails, "Who promises to deliver the order?"])
    speech = find_speech(text, [(0, len(text))])
    assert [text[slice(*task)] for task in speech.tasks] == ["Who promises to deliver the order?"]
    assert sum(end - start for start, end in speech.spans) < 0.1 * len(text)


def test_the_header_of_a_table_asks_nothing() -> None:
    tables = [f"| what | number |\n|---|---|\n| lamp | {n} |\n| kettle | {n + 7} |\n\nTable {n}" for n in range(60)]
    text = "\n\n".join([*tables, "What happened to the lamp?"])
    speech = find_speech(text, [(0, len(text))])
    assert [text[slice(*task)] for task in speech.tasks] == ["What happened to the lamp?"]
    assert sum(end - start for start, end in speech.spans) < 0.1 * len(text)


def test_the_question_of_an_example_inside_a_long_text_is_speech_and_no_task() -> None:
    """Words would find it in place of the answer."""
    noise = "The grass is green. The sky is blue.\n" * 60
    example = "Question: Find all variables that are assigned the value 50816. Answer: MUX, WBITS"
    asked = "Question: Find all variables that are assigned the value 47854. Answer:"
    text = f"Track the variables.\n\n{noise}{example}\n\nTrack the variables.\n\n{noise}{asked}"
    speech = find_speech(text, [(0, len(text))])
    assert any(start <= text.index(example) and text.index(example) + 60 <= end for start, end in speech.spans)
    assert [text[slice(*task)] for task in speech.tasks] == [asked]


def test_a_title_that_begins_with_a_noun_of_a_verb_asks_nothing() -> None:
    text = (
        "List of the main characters of the whole film\n\n"
        + "The lamp of room 7 was checked by hand. " * 90
        + "\n\nQuestion: who plays Marty"
    )
    assert [text[slice(*task)] for task in find_speech(text, [(0, len(text))]).tasks] == ["Question: who plays Marty"]
    text = text.replace("List of the main", "List all the main")
    assert len(find_speech(text, [(0, len(text))]).tasks) == 2, "the control"
