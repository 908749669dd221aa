"""Borders of units never lie inside a number, a word or a character; abbreviations end no sentence."""

import json
import random
from itertools import pairwise
from unicodedata import category

import numpy as np
import pytest

from router.prompt.text.codes import codes_of
from router.prompt.text.cuts import LONGEST, sentence_ends
from router.prompt.text.units import MAX_TOKENS, text_units


def pieces(text, size=1):
    """The units of a text whose tokens have `size` characters each."""
    offsets = [(at, min(at + size, len(text))) for at in range(0, len(text), size)]
    starts = [offsets[start][0] for start in text_units(text, offsets).starts.tolist()]
    return [text[a:b] for a, b in zip(starts, [*starts[1:], len(text)], strict=True)]


FACT = "Acme Inc. sold 5,000 units, approx. 12 percent more than Dr. Lee said in No. 7 of the U.S. list, by J. K. Rowe."


@pytest.mark.parametrize("end", [" ", "\n"])
def test_a_fact_with_abbreviations_is_one_unit(end):
    assert [piece.strip() for piece in pieces(end.join([FACT] * 9), size=4)] == [FACT] * 9


@pytest.mark.parametrize(
    "text",
    [
        "He said no. Then he left.",
        "It is the sun. It is hot.",
        "This is fig. Another one.",
        "I saw it. We left.",
        "At 5. Then 6.",
    ],
)
def test_control_other_stops_end_a_sentence(text):
    end = text.index(". ") + 1
    assert sentence_ends(codes_of(text), text, np.array([end])).tolist() == [end]


@pytest.mark.parametrize(
    "sentence",
    [
        "वह कल बाज़ार गया और उसने बहुत सारे फल खरीदे।",
        "هل ذهب الرجل إلى السوق أمس واشترى الكثير؟",
        "وہ کل بازار گیا اور اس نے بہت پھل خریدے۔",
    ],
)
def test_sentences_of_other_scripts_end(sentence):
    assert [piece.strip() for piece in pieces(" ".join([sentence] * 6), size=2)] == [sentence] * 6


def test_no_number_of_a_json_object_is_torn():
    rng = random.Random(0)
    found = pieces(json.dumps({f"key {i}": rng.randint(10**4, 10**9) for i in range(150)}), size=3)
    assert len(found) > 5
    assert not any(before[-1].isdigit() and after[0].isdigit() for before, after in pairwise(found))


@pytest.mark.parametrize("mark", ["，", "；", "、"])
def test_chinese_clauses_are_cut_at_their_marks(mark):
    text = mark.join("重量是五千克而且很重" for _ in range(60))
    offsets = [(at, at + 1) for at in range(len(text)) for _ in range(3)]  # three tokens for each character
    starts = text_units(text, offsets).starts
    assert len(starts) > 5
    assert all(text[offsets[start][0] - 1] == mark and start % 3 == 0 for start in starts.tolist()[1:])


def test_words_are_whole_and_what_has_no_words_is_cut_late():
    found = pieces("longword" + " longword" * 100)
    assert all(piece.split() == ["longword"] * (len(piece.split())) for piece in found)
    assert max(map(len, found)) <= MAX_TOKENS
    assert [len(piece) for piece in pieces("x" * 400)] == [400]
    assert [len(piece) for piece in pieces("x" * (2 * LONGEST))] == [LONGEST, LONGEST]


def test_no_emoji_is_torn():
    family = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
    text = family * 200
    offsets = [(at, at + 1) for at in range(len(text))]
    starts = text_units(text, offsets).starts.tolist()
    assert len(starts) > 1
    assert all(text[start] != "\u200d" and text[start - 1] != "\u200d" for start in starts[1:])


def test_each_cut_is_the_best_that_is_near():
    words = ["word"] * 300
    words[40] = "word,"
    [first, *_] = pieces(" ".join(words), size=5)
    assert first.rstrip().endswith("word,")
    assert np.all([len(piece) <= 5 * MAX_TOKENS for piece in pieces(" ".join(words), size=5)])


THAI = "ถนนไปยังเมืองเก่าถูกปิดเพราะน้ำท่วม", "โรงเรียนใกล้ตลาดมีนักเรียนและเตาหนึ่งเตา", "สภาเมืองลงคะแนนในข้อเสนอเดียวกัน"


@pytest.mark.parametrize("stop", ["", "\u0020\u17d4"])
def test_thai_is_cut_between_phrases_and_never_beside_a_number(stop):
    text = " ".join(f"{THAI[n % 3]} {n + 1000} ดวง{stop}" for n in range(40))
    found = pieces(text, size=2)
    assert len(found) > 8
    for before, after in pairwise(found):
        assert not before.rstrip()[-1:].isdigit()
        assert not after.lstrip()[:1].isdigit()
        assert before.endswith((" ", "\u17d4")) or after.startswith(" ")


def test_no_vowel_sign_is_torn_from_its_consonant():
    """Also without any space: Thai, Lao, Khmer, Hindi with its signs."""
    for text in ("เก็บน้ำที่นี่" * 200, "ເກັບນ້ຳທີ່ນີ້" * 200, "ខ្ញុំទៅផ្សារ" * 200, "हिन्दी" * 300):
        found = pieces(text)
        assert len(found) > 1
        assert all(category(piece[0]) not in ("Mn", "Mc") for piece in found)
