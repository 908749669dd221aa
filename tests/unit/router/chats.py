"""Chats with one token a character: prompts of a conversation whose answers are tokens, not text."""

from dataclasses import dataclass, field

import numpy as np

from router.prompt.contents import ChatContents, Content
from router.prompt.rendered import RenderedPrompt


@dataclass
class Chat:
    """messages: of each, role, text, ids (of an answer; by its text otherwise) and tool. What a message of the role
    `called` says is no content: the template writes it, as it writes calls of tools."""

    messages: list[tuple[str, str, list[int] | None, str | None]] = field(default_factory=list)

    def add(self, role, text, ids=None, tool=None):
        self.messages.append((role, text, ids, tool))
        return self

    def answered(self, tokens):
        return self.add("assistant", "x" * len(tokens), tokens)

    def copy(self):
        return Chat([*self.messages])

    def rendered(self):
        """Each message as `<role>text</s>`, and `<assistant>` before the answer."""
        text, ids, contents = "", [], []
        for number, (role, said, own, tool) in enumerate(self.messages):
            text += f"<{role}>"
            if role != "called":
                contents.append(Content(number, role, said, tool, spans=((len(text), len(text) + len(said)),)))
            ids += [*_ids(f"<{role}>"), *(own or _ids(said)), *_ids("</s>")]
            text += f"{said}</s>"
        text += "<assistant>"
        ids += _ids("<assistant>")
        chat = ChatContents([role for role, *_ in self.messages], contents)
        offsets = [(place, place + 1) for place in range(len(text))]
        return RenderedPrompt(np.array(ids, np.int32), text, offsets, chat)

    def span(self, number):
        """The tokens of a message's content."""
        return next(one.spans[0] for one in self.rendered().chat.contents if one.message == number)


def _ids(text):
    return [7 + ord(one) % 900 for one in text]


def prompt_spans(size, options, chat, text, offsets):
    """The spans of a prompt whose token ids do not matter."""
    return RenderedPrompt(np.zeros(size, np.int32), text, offsets, chat).spans(options)


def result(number, lines=60):
    """The text of a tool's result: lines of about thirty tokens."""
    return "\n".join(f"row {number}{line:03d} holds the value {line * 37 % 1000}." for line in range(lines))
