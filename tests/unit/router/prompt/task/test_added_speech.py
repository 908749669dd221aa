"""Speech that is added to a prompt never costs the evidence, at an equal budget of tokens for the material.

Scored by the words alone, in chats of one turn.
"""

import random

import numpy as np
import pytest

from kv_transfer.messages import SelectRequest
from kv_transfer.options import SelectionOptions
from router.options.request import PrefillOptions
from router.prompt.contents import ChatContents, Content
from router.prompt.rendered import RenderedPrompt
from router.prompt.text import lexical, units
from speculator_service.selection.passages import lexical_importance
from speculator_service.selection.select import select
from tests.unit.router.prompt.structure.test_forms import words

RATE = 0.05
TASK = "How many lanterns of brass did the depot of Harwell store in the spring?"
EVIDENCE = "In the spring the depot of Harwell counted 4,417 lanterns of brass."
NEAR = (
    "The depot of {} counted {} ropes in the winter.",
    "A lantern of the school in {} burned for {} days.",
    "In the spring the road to {} was closed for {} days.",
    "The council of {} wrote {} rules, and nobody at the market could answer its questions.",
    "A reader of {} opened a file of {} pages and wrote a short note about the road.",
)
PLACES = ("Ostrava", "Dunmore", "Tarnby", "Ludlow", "Vesper", "Calder", "Hexley", "Orford")
ADDED = {
    "thanks": "Thanks a lot for your help!",
    "go on": "Continue.",
    "rules": "Rules:\n- Answer in one short sentence.\n- Write the days as digits.\n- If nobody wrote it, write NONE.",
    "many rules": "\n".join(f"- Write answer {n} so that each reader of the council can follow it." for n in range(12)),
    "reminder": "<system-reminder>\nThe list of open files is empty. Do not answer this note.\n</system-reminder>",
    "environment": "<environment_details>\n# Open files\nnotes.txt\n# Time\n10:00\n</environment_details>",
    "another question": "Who closed the road, and for how many days?",
    "an order": "Please read the notes with care, and say which road, which school and which market you mean.",
}
FORMS = ("{new}\n\n{task}\n\n{doc}", "{task}\n\n{doc}\n\n{new}", "{new}\n\n{doc}\n\n{task}", "{doc}\n\n{task}\n\n{new}")
FORMS += ("{task}\n\n{half1}\n\n{new}\n\n{half2}", "{half1}\n\n{new}\n\n{half2}\n\n{task}")


def keeps(text, budget=None):
    """Whether the evidence is kept, and the budget."""
    whole = f"<|user|> {text} <|end|>"
    offsets = words(whole)
    contents = [Content(0, "user", text, spans=((9, 9 + len(text)),))]
    prompt = RenderedPrompt(np.arange(len(offsets), dtype=np.int32), whole, offsets, ChatContents(["user"], contents))
    layout = prompt.layout(PrefillOptions())
    droppable = int((~layout.fixed(prompt.size, 32)).sum())
    rate = RATE if budget is None else budget / droppable
    request = SelectRequest("id", prompt.token_ids, SelectionOptions(keep_rate=round(rate, 6)), layout)
    kept = np.zeros(prompt.size, bool)
    importance = lexical_importance(layout, prompt.size)
    kept[select(importance, request.options, layout)[0]] = True
    start = whole.index(EVIDENCE)
    inside = [start <= first and end <= start + len(EVIDENCE) for first, end in offsets]
    return kept[inside].all(), rate * droppable


def lost(seed):
    """How often the evidence of one document is lost, of all forms and blocks where it is kept without the block."""
    rng = random.Random(seed)
    told = [rng.choice(NEAR).format(rng.choice(PLACES), rng.randint(3, 99)) for _ in range(120)]
    told[rng.randrange(30, 90)] = EVIDENCE
    parts = [" ".join(told[at : at + 6]) for at in range(0, 120, 6)]
    texts = {"doc": parts, "half1": parts[:10], "half2": parts[10:]}
    given = {"task": TASK, **{name: "\n\n".join(some) for name, some in texts.items()}}
    missed = []
    for form in FORMS:
        plain = form.replace("{new}\n\n", "").replace("\n\n{new}", "")
        kept, budget = keeps(plain.format(**given))
        assert kept, plain
        missed += [(form, name) for name, new in ADDED.items() if not keeps(form.format(**given, new=new), budget)[0]]
    return missed


@pytest.mark.parametrize("seed", range(3))
def test_added_speech_never_costs_the_evidence(seed):
    assert lost(seed) == []


def test_control_the_last_question_alone_loses_it(monkeypatch):
    monkeypatch.setattr(units, "word_scores", lambda *given: lexical.word_scores(*given[:-1], given[-1][-1:]))
    assert lost(0) != []
