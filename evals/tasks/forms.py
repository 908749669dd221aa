"""Forms of prompts: where clients put the task, their rules and their own notes around the texts to read.

The forms are those of RAG templates (LangChain, LlamaIndex, Haystack, Open WebUI, Dify, RAGFlow, LibreChat), coding
agents (Cline, Claude Code, Codex, OpenCode, aider, Continue, OpenHands), batch classifiers and people. The words are
our own. A form is a list of messages with places for the document, its halves, passages, the task and the rules.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from evals.tasks.quiz import Message

Template = tuple[tuple[str, str], ...]
"""Messages as (role, content). An element that begins with "+" is a further content part of the message before it."""


@dataclass(frozen=True, slots=True)
class Words:
    """The words of one language. fact, question: with places for a thing and a number."""

    fact: str
    question: str
    rules: tuple[str, str]
    things: tuple[str, ...]
    kinds: tuple[str, ...]
    between: str = " "


ENGLISH = Words(
    "The weight of the {} is {}.",
    "What is the weight of the {}?",
    ("Answer in one word.", "Write numbers as digits."),
    ("compass", "kettle", "lantern", "drill", "barrel", "saddle", "mirror", "anchor", "ladder", "basket"),
    ("heavy", "old", "red", "small", "rusty", "blue", "tall", "round", "wooden", "broken"),
)
GERMAN = Words(
    "Das Gewicht von {} beträgt {} Gramm.",
    "Wie viel wiegt {}?",
    ("Antworte mit einem Wort.", "Schreibe Zahlen als Ziffern."),
    ("Kompass", "Kessel", "Laterne", "Bohrer", "Fass", "Sattel", "Spiegel", "Anker", "Leiter", "Korb"),
    ("Schwer", "Alt", "Rot", "Klein", "Rost", "Blau", "Hoch", "Rund", "Holz", "Bruch"),
)
CHINESE = Words(
    "{}的重量是{}克。",
    "{}的重量是多少？",
    ("用一个词回答。", "数字用阿拉伯数字写。"),
    (
        "指南针",
        "水壶",
        "灯笼",
        "钻头",
        "木桶",
        "马鞍",
        "镜子",
        "船锚",
        "梯子",
        "篮子",
    ),
    (
        "重的",
        "旧的",
        "红的",
        "小的",
        "锈的",
        "蓝的",
        "高的",
        "圆的",
        "木的",
        "破的",
    ),
    between="",
)
LANGUAGES = {"en": ENGLISH, "de": GERMAN, "zh": CHINESE}


def _user(*contents: str) -> Template:
    """One user's message; further contents are content parts."""
    first, *others = contents
    return (("user", first), *(("+", other) for other in others))


_ASSISTANT = ("assistant", "I have read it.")
_CALL = ("call", "read_file")

FORMS: dict[str, Template] = {
    # Plain text.
    "question last": _user("{doc}\n\n{task}"),
    "question last, no blank line": _user("{doc}\n{task}"),
    "question last, same line": _user("{doc} {task}"),
    "question first": _user("{task}\n\n{doc}"),
    "question first, no blank line": _user("{task}\n{doc}"),
    "question first, polite": _user("Hello! I have a question about the notes below. {task}\n\nNotes:\n{doc}\n"),
    "question in the middle": _user("{half1}\n\n{task}\n\n{half2}"),
    "question first and last": _user("{task}\n\n{doc}\n\n{task}"),
    "thanks after it": _user("{doc}\n\n{task}\n\nThanks!"),
    "signature after it": _user("{doc}\n\n{task}\n\nBest regards,\nM. Keller"),
    "rules after it": _user("{doc}\n\n{task}\n\nRules:\n- {rule1}\n- {rule2}"),
    "rules after it, prose": _user("{doc}\n\n{task}\n\n{rule1} {rule2}"),
    "rules before the document": _user("Rules:\n- {rule1}\n- {rule2}\n\n{doc}\n\n{task}"),
    "rules first, question second": _user("{rule1} {rule2}\n\n{task}\n\n{doc}"),
    "options after it": _user("{doc}\n\nQuestion: {task}\nA. 1\nB. 2\nC. 3\nD. 4\n{rule1}"),
    "labels": _user("Context:\n{doc}\n\nQuestion: {task}\nAnswer:"),
    "labels, question first": _user("Question: {task}\n\nContext:\n{doc}\n\nAnswer:"),
    # RAG templates.
    "use the pieces": _user(
        "Use the following pieces of context to answer the question at the end. {rule1}\n\n{passages}\n\n"
        "Question: {task}\nHelpful answer:"
    ),
    "assistant for answering": _user(
        "You are an assistant that answers questions. {rule1} {rule2}\nQuestion: {task}\nContext: {passages}\nAnswer:"
    ),
    "between rules of dashes": _user(
        "Context information is below.\n---------------------\n{passages}\n---------------------\n"
        "Given the context and not prior knowledge, answer the query. {rule1}\nQuery: {task}\nAnswer: "
    ),
    "based only on": _user(
        "Answer the question based only on the following context:\n\n{passages}\n\nQuestion: {task}\n"
    ),
    "headings": _user(
        "### Task:\n{rule1}\n\n### Guidelines:\n- {rule2}\n\n<context>\n{sources}\n</context>\n\n"
        "<user_query>\n{task}\n</user_query>\n"
    ),
    "tag around the context": _user("<context>\n{passages}\n</context>\n\n{rule1}\nQuery: {task}"),
    "question tag first": _user("<question>{task}</question>\n<documents>\n{sources}\n</documents>\n{rule1}"),
    "everything in one tag": _user("<prompt>\n<text>\n{doc}\n</text>\n<task>\n{task}\n</task>\n</prompt>"),
    "system has the rules": (("system", "{rule1} {rule2}"), *_user("{passages}\n\n{task}")),
    "numbered passages": _user("{task}\n\n[1] {half1}\n\n[2] {half2}\n\n{rule1}"),
    "refine": _user(
        "The original query is as follows: {task}\nWe have an existing answer: unknown.\n------------\n{doc}\n"
        "------------\nGiven the new context, refine the answer. {rule1}"
    ),
    "knowledge base": _user(
        "Here is the knowledge base:\n{passages}\nThe above is the knowledge base.\n{rule1}\n{task}"
    ),
    # Content parts.
    "document part, question part": _user("{doc}", "{task}"),
    "question part, document part": _user("{task}", "{doc}"),
    "question, document, rules as parts": _user("{task}", "{doc}", "{rule1} {rule2}"),
    "two documents as parts": _user("{half1}", "{half2}", "{task}"),
    "question between two parts": _user("{half1}", "{task}", "{half2}"),
    # Agents and editors.
    "reminder after the task": _user("{doc}\n\n{task}\n\n<reminder>\nThe list of open items is empty.\n</reminder>"),
    "reminder part": _user(
        "{doc}\n\n{task}", "<system-reminder>\nThe list of open items is empty.\n</system-reminder>"
    ),
    "reminder before the task": _user("<system-reminder>\n{rule1}\n</system-reminder>", "{doc}\n\n{task}"),
    "environment after the task": _user(
        '<task>\n{task}\n</task>\n\n<file_content path="notes.txt">\n{doc}\n</file_content>\n\n'
        "<environment_details>\n# Open files\nnotes.txt\nmain.py\n</environment_details>"
    ),
    "fenced file, then the task": _user("notes.txt\n```\n{doc}\n```\n\n{task}"),
    "task, then a fenced file": _user("{task}\n\n```text\n{doc}\n```\n"),
    "task between two fenced files": _user("```\n{half1}\n```\n\n{task}\n\n```\n{half2}\n```"),
    "files first, task in the next turn": (
        *_user("I have added these files:\n\n```\n{doc}\n```"),
        _ASSISTANT,
        *_user("{task}"),
    ),
    "tool result": (*_user("{task}"), _CALL, ("tool", "{doc}")),
    "tool result, then a reminder": (
        *_user("{task}"),
        _CALL,
        ("tool", "{doc}"),
        *_user("<reminder>Three files are open.</reminder>"),
    ),
    "tool result, then continue": (*_user("{task}"), _CALL, ("tool", "{doc}"), *_user("Continue.")),
    "tool result as text": (
        *_user("{task}"),
        ("assistant", "I will read the file."),
        *_user("[read_file for 'notes.txt'] Result:\n{doc}"),
    ),
    "uploaded file": _user(
        "<uploaded_files>\nnotes.txt\n</uploaded_files>\n{doc}\n\n<issue_description>\n{task}\n</issue_description>\n{rule1}"
    ),
    "long turn, then continue": (*_user("{doc}\n\n{task}"), _ASSISTANT, *_user("Go on.")),
    # Batches.
    "text label": _user("{task} {rule1}\n\nText: {doc}\n\nLabel:"),
    "triple quotes": _user('{task}\n\n"""\n{doc}\n"""\n\n{rule1}'),
    "one JSON object": _user('{{"instruction": "{task} {rule1}", "input": "{doc}"}}'),
    "JSON with a list of texts": _user(
        '{{"question": "{task}", "rules": ["{rule1}", "{rule2}"], "texts": ["{half1}", "{half2}"]}}'
    ),
    "label in the middle": _user("{half1}\n\nQuestion: {task}\n\n{half2}"),
    "twelve rules after it": _user("{doc}\n\n{task}\n\n{rules12}\n\nThanks!"),
    "twelve rules before the document": _user("{rules12}\n\n{doc}\n\n{task}"),
    "long note after a tool's result": (
        *_user("{task}"),
        _CALL,
        ("tool", "{doc}"),
        *_user("<system-reminder>\n{rules12}\n</system-reminder>"),
    ),
    "start and end": _user("{rule1} {task}\n\n=== START OF DOCUMENT ===\n{doc}\n=== END OF DOCUMENT ===\n"),
}
"""By name."""


@dataclass(frozen=True, slots=True)
class FormPrompt:
    """One prompt. task, rules: what a selection must keep whole. evidence: what answers the task. control: the
    same document with the question last."""

    form: str
    language: str
    messages: list[Message]
    task: str
    rules: tuple[str, ...]
    evidence: str
    control: list[Message]


def form_prompts(sentences: int, seed: int, languages: tuple[str, ...] = tuple(LANGUAGES)) -> Iterator[FormPrompt]:
    """A prompt of each form in each language, with a document of so many sentences."""
    for number, (form, template) in enumerate(FORMS.items()):
        for language in languages:
            rng = random.Random(f"{seed}-{number}-{language}")
            yield _prompt(form, template, language, sentences, rng)


def _prompt(form: str, template: Template, language: str, sentences: int, rng: random.Random) -> FormPrompt:
    words = LANGUAGES[language]
    space = " " if language == "en" else "-" if language == "de" else ""
    names = [kind + space + thing for kind in words.kinds for thing in words.things]
    rng.shuffle(names)
    asked, *others = names
    facts = [words.fact.format(rng.choice(others), rng.randint(1000, 9999)) for _ in range(sentences)]
    place = rng.randrange(sentences)
    facts[place] = words.fact.format(asked, rng.randint(1000, 9999))
    joint = rng.choice((words.between, "\n"))
    groups = [joint.join(facts[at : at + 10]) for at in range(0, sentences, 10)]
    filled = {
        "task": words.question.format(asked),
        "rule1": words.rules[0],
        "rule2": words.rules[1],
        "rules12": "\n".join(f"- {words.rules[number % 2]} ({number})" for number in range(12)),
        "doc": joint.join(facts),
        "half1": joint.join(facts[: sentences // 2]),
        "half2": joint.join(facts[sentences // 2 :]),
        "passages": "\n\n".join(groups),
        "sources": "\n".join(f'<source id="{at}">\n{group}\n</source>' for at, group in enumerate(groups, 1)),
    }
    used = " ".join(content for _, content in template)
    rules = tuple(rule for rule, place in zip(words.rules, ("{rule1}", "{rule2}"), strict=True) if place in used)
    if "{rules12}" in used:
        rules = tuple(filled["rules12"].split("\n"))
    messages, control = (_messages(one, filled) for one in (template, FORMS["question last"]))
    return FormPrompt(form, language, messages, filled["task"], rules, facts[place], control)


def _messages(template: Template, filled: dict[str, str]) -> list[Message]:
    messages: list[Message] = []
    for role, content in template:
        text = content.format(**filled)
        if role == "+":
            last = messages[-1]
            parts = (
                last["content"] if isinstance(last["content"], list) else [{"type": "text", "text": last["content"]}]
            )
            last["content"] = [*parts, {"type": "text", "text": text}]
        elif role == "call":
            call = {"id": "call-1", "type": "function", "function": {"name": text, "arguments": "{}"}}
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        elif role == "tool":
            messages.append({"role": role, "tool_call_id": "call-1", "content": text})
        else:
            messages.append({"role": role, "content": text})
    return messages
