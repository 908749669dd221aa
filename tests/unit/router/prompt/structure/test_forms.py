"""Evidence is kept with its label, in many forms of labels, and no kept text stands under the label of another."""

import random
import re
from dataclasses import replace

import numpy as np
import pytest

from kv_transfer.arrays import no_numbers
from kv_transfer.options import SelectionOptions
from router.prompt.text.units import with_units
from speculator_service.selection.select import select
from tests.unit.kv_transfer.layouts import layout_of

PASSAGES, EVIDENCE = 24, 5
SENTENCES = [
    "The weight of the {0} {1} is {2}.",
    "A {0} {1} was found near the old pier in {2}.",
    "Nobody asked how the {0} {1} came there.",
    "It was sold for {2} to a man with a {0} {1}.",
]
NAMES = ["Alice Smith", "Bob", "Carol", "Dan"]
FORMS = {
    "tag": ('<doc id="{n}">\n', "{text}\n</doc>\n"),
    "tag, one line": ('<doc id="{n}">', "{text}</doc>"),
    "tag with a first child": ("<title>House {n}</title>\n", "<body>\n{text}\n</body>\n</passage>\n"),
    "tag with attributes and a first child": (
        '<document index="{n}">\n<source>house_{n}.pdf</source>\n',
        "<document_content>\n{text}\n</document_content>\n</document>\n",
    ),
    "header": ("page_label: {n}\nfile_path: /data/house_{n}.pdf\n\n", "{text}\n\n"),
    "brackets with a colon": ("[CONTEXT {n}]:\n", "{text}\n[END CONTEXT]\n\n"),
    "parentheses": ("(House {n}, a memo)\n", "{text}\n\n"),
    "comment": ("<!-- page {n} -->\n", "{text}\n\n"),
    "AsciiDoc": ("== House {n}\n\n", "{text}\n\n"),
    "Org": ("** House {n}\n", "{text}\n"),
    "LaTeX": ("\\section{{House {n}}}\n", "{text}\n\n"),
    "Markdown": ("## Passage {n}\n\n", "{text}\n\n"),
    "setext": ("House {n}\n-------\n\n", "{text}\n\n"),
    "HTML": ("<h2>House {n}</h2>\n", "<p>{text}</p>\n"),
    "tag in the line": ("[doc {n}]", " {text}\n"),
    "[n] title": ("[{n}] Notes of house {n}\n", "{text}\n\n"),
    "wide brackets": ("\u3010House {n}\u3011", "{text}\n"),
    "source": ("Source: house_{n}.txt\n", "{text}\n\n"),
    "two lines": ("Title: House {n}\nURL: http://example.org/{n}\n", "{text}\n\n"),
    "document": ("Document {n}:\n", "{text}\n\n"),
    "document in the line": ("Passage {n}:", " {text}\n\n"),
    "bold": ("**House {n}**\n\n", "{text}\n\n"),
    "capitals": ("HOUSE NUMBER {n}\n\n", "{text}\n\n"),
    "title": ("Notes of house {n}\n", "{text}\n\n"),
    "item": ("{n}.", " {text}\n"),
    "bars": ("=== service {n} ===\n", "{lines}\n"),
    "tail": ("==> house_{n}.log <==\n", "{lines}\n\n"),
    "file above lines": ("src/house_{n}.txt\n", "{lines}\n\n"),
    "ls -R": ("./house_{n}:\n", "{lines}\n\n"),
    "diff": ("+++ b/src/house_{n}.txt\n", "@@ -1,5 +1,5 @@\n{lines}\n"),
    "speaker": ("{name}:", " {text}\n"),
    "time": ("[00:{n:02d}:00]\n", "{text}\n"),
    "JSON lines": ('"id": "house {n}",', ' "text": "{text}"}}\n'),
    "time and speaker": ("[00:{n:02d}:00] {name}:", " {text}\n"),
}
BEFORE = {
    "tag with a first child": "<passage>\n",
    "JSON lines": "{{",
    "diff": "diff --git a/src/house_{n}.txt b/src/house_{n}.txt\n--- a/src/house_{n}.txt\n",
}


def words(text):
    """Tokens as most tokenizers make them."""
    return [found.span() for found in re.finditer(r"\n+|[ \t]*\w+|[ \t]*[^\w\s]|[ \t]+", text)]


class Passages:
    """Labelled passages of a form, a question, and scores that are high for some sentences: the evidence."""

    def __init__(self, form: str, seed: int) -> None:
        rng = random.Random(seed)
        label, body = FORMS[form]
        self.text, self.labels, self.sentences = "", [], []
        for number in range(PASSAGES):
            self.text += BEFORE.get(form, "").format(n=number)
            made = label.format(n=number, name=NAMES[number % 4])
            self.labels.append((len(self.text), len(self.text) + len(made.rstrip())))
            texts = [
                rng.choice(SENTENCES).format(
                    rng.choice(["red", "old", "brass"]), rng.choice(["lamp", "bell", "rope"]), rng.randint(1000, 9999)
                )
                for _ in range(5)
            ]
            joint = "\n" if "{lines}" in body else " "
            made += body.format(text=joint.join(texts), lines=joint.join(texts))
            for one in texts:
                start = len(self.text) + made.index(one)
                self.sentences.append((start, start + len(one), number))
            self.text += made
        question = len(self.text)
        self.text += "\n\nWhat is the weight of the heavy compass?"
        self.offsets = words(self.text)
        first = next(number for number, (start, _) in enumerate(self.offsets) if start >= question)
        protected = [(0, 1), (first, len(self.offsets))]
        self.options = SelectionOptions(keep_rate=0.2)
        self.layout = with_units(layout_of(protected), self.text, self.offsets, self.options, len(self.offsets))
        self.evidence = rng.sample(self.sentences, EVIDENCE)
        self.scores = np.array([rng.random() / 10 for _ in self.offsets], np.float32)
        for start, end, _ in self.evidence:
            inside = [start <= a and b <= end for a, b in self.offsets]
            self.scores[inside] += 1 + rng.random()

    def kept(self, layout=None):
        """Of each character, whether it is kept."""
        positions, _ = select(self.scores, self.options, layout or self.layout)
        mask = np.zeros(len(self.text), bool)
        for start, end in [self.offsets[position] for position in positions.tolist()]:
            mask[start:end] = True
        self.share = positions.size / len(self.offsets)
        return mask | np.array([character.isspace() for character in self.text])

    def with_label(self, kept):
        """How many of the evidence are kept with their label."""
        return sum(kept[a:b].all() and kept[slice(*self.labels[number])].all() for a, b, number in self.evidence)

    def under_another(self, kept):
        """How many kept sentences stand under the label of another passage."""
        wrong = 0
        for start, end, number in self.sentences:
            if kept[start:end].all():
                before = [at for at, (a, b) in enumerate(self.labels) if b <= start and kept[a:b].all()]
                wrong += before[-1:] not in ([], [number])
        return wrong


@pytest.mark.parametrize("form", FORMS)
def test_evidence_brings_its_label(form):
    for seed in range(3):
        passages = Passages(form, seed)
        kept = passages.kept()
        assert passages.with_label(kept) == EVIDENCE
        assert passages.under_another(kept) == 0
        assert passages.share < 0.25


@pytest.mark.parametrize("form", FORMS)
def test_control_without_headings(form):
    found = wrong = 0
    for seed in range(3):
        passages = Passages(form, seed)
        kept = passages.kept(replace(passages.layout, headings=no_numbers()))
        found, wrong = found + passages.with_label(kept), wrong + passages.under_another(kept)
    assert found < 3 * EVIDENCE
    assert wrong or form == "two lines"  # seldom are both kept by chance
