"""The kept prompt of a later turn: what stands is not moved, what the question needs is appended before it."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.options import SelectionOptions
from speculator_service.selection.extension import Extended, KnownPrefix, Prompt, extend
from speculator_service.selection.select import select
from tests.unit.kv_transfer.layouts import layout_of

CHUNK = 32
DOCUMENT = range(32, 32 + 64 * CHUNK)
"""A document of 64 chunks after a template of one chunk."""


def turn(
    size: int,
    important: Sequence[int],
    spans: Sequence[tuple[int, int]] = (),
    question: tuple[int, int] | None = None,
    **options: object,
) -> Prompt:
    """A prompt in which the chunks `important` count more than all others, the first of them most."""
    importance = np.full(size, 1e-3, np.float32)
    for rank, chunk in enumerate(important):
        importance[chunk * CHUNK : (chunk + 1) * CHUNK] = 1.0 - rank / 100
    chosen = SelectionOptions.model_validate({"keep_rate": 0.1, **options})
    layout = layout_of(spans, question=question)
    fresh, _ = select(importance, chosen, layout)
    return Prompt(importance, fresh.astype(np.int32), chosen, layout)


FIRST = turn(2200, [1, 20, 21, 22, 23, 24, 25], [(0, 32), (2080, 2200)], (2090, 2190))
KNOWN = KnownPrefix(FIRST.fresh, 2200, 2200)
ANSWER, TEMPLATE, QUESTION, SIZE = 2200, 2230, 2240, 2300
SPANS = [(0, 32), (TEMPLATE, SIZE)]


def second(important: Sequence[int], **options: object) -> Prompt:
    """The next turn: an answer of 30 tokens, then the template and a question of 60."""
    return turn(SIZE, important, SPANS, (QUESTION, 2290), **options)


def chunk(index: int) -> list[int]:
    return list(range(index * CHUNK, (index + 1) * CHUNK))


def test_a_turn_is_the_record_the_answer_late_chunks_and_the_question() -> None:
    kept = extend(second([40, 41, 20, 21, 22, 23, 24]), KNOWN)
    expected = [*FIRST.fresh, *range(ANSWER, QUESTION), *chunk(40), *chunk(41), *range(QUESTION, SIZE)]
    assert kept.positions.tolist() == expected
    assert (kept.reused, kept.late, kept.compacted) == (FIRST.fresh.size, 2 * CHUNK, False)


def test_a_turn_that_needs_nothing_adds_only_its_own_tokens() -> None:
    kept = extend(second([20, 21, 22, 23, 24, 25, 1]), KNOWN)
    assert kept.positions.tolist() == [*FIRST.fresh, *range(ANSWER, SIZE)]
    assert kept.late == 0


def test_a_turn_whose_best_chunks_stand_adds_none_of_the_others() -> None:
    """The fresh selection has other chunks of the old text too, which matter less than those that stand."""
    wanted = [20, 21, 22, 23, 40, 41, 42]
    assert set(chunk(40)) <= set(second(wanted).fresh)
    kept = extend(second(wanted), KNOWN)
    assert (kept.late, kept.compacted) == (0, False)
    assert extend(second([20, 21, 22, 40, 23, 41, 42]), KNOWN).late == CHUNK


def test_at_most_an_eighth_of_a_fresh_selection_is_added_per_turn() -> None:
    stands = KnownPrefix(np.r_[np.arange(65 * CHUNK), 6399].astype(np.int32), 6400, 6400)
    prompt = turn(6500, [*range(100, 160)], [(0, 32), (6430, 6500)], (6440, 6490), keep_rate=0.32)
    kept = extend(prompt, stands)
    assert kept.late == 9 * CHUNK  # of the 66 chunks that a fresh selection keeps
    assert set(kept.positions) >= {p for index in range(100, 109) for p in chunk(index)}


def test_a_few_chunks_are_added_whatever_their_share() -> None:
    kept = extend(second([40, 45, 41, 42, 43, 44, 1]), KNOWN)
    assert kept.late == 4 * CHUNK  # an eighth would be 1
    assert set(chunk(40) + chunk(45)) <= set(kept.positions.tolist())


def test_as_much_stands_as_a_fresh_selection_keeps() -> None:
    """A request with a higher keep rate than the one before gets it."""
    prompt = second(range(20, 40), keep_rate=0.3)
    kept = extend(prompt, KNOWN)
    assert kept.reused == FIRST.fresh.size
    assert kept.late == 10 * CHUNK  # an eighth would be 3
    assert (kept.positions < 2200).sum() > (prompt.fresh < 2200).sum() - CHUNK


def test_chunks_of_little_importance_are_left_out() -> None:
    """A high keep rate wants chunks that matter less than most of the old text."""
    many = KnownPrefix(np.r_[np.arange(60 * CHUNK), 2199].astype(np.int32), 2200, 2200)
    prompt = second(range(50), keep_rate=0.9, max_keep=1.0)
    assert set(chunk(61)) <= set(prompt.fresh)
    assert extend(prompt, many).late == 0
    prompt.importance[np.array(chunk(61))] = 2.0
    assert extend(prompt, many).late == CHUNK


def test_a_lower_keep_rate_keeps_what_stands_until_it_is_too_much() -> None:
    lower = second([20, 21, 22, 23, 24], keep_rate=0.08)
    assert extend(lower, KNOWN).reused == FIRST.fresh.size
    many = KnownPrefix(np.arange(2200, dtype=np.int32), 2200, 2200)
    compacted = extend(lower, many)
    assert compacted.compacted
    assert compacted.positions.tolist() == lower.fresh.tolist()


def in_lines(prompt: Prompt) -> Prompt:
    """The prompt with lines of a chunk each."""
    lines = np.arange(0, prompt.size, CHUNK, dtype=np.int32)
    options = prompt.options.model_copy(update={"granularity": "text"})
    return replace(prompt, options=options, layout=replace(prompt.layout, units=lines))


def of_text(prompt: Prompt, **changes: np.ndarray) -> Prompt:
    """The prompt with another layout, and what is then selected."""
    layout = replace(prompt.layout, **changes)
    fresh, _ = select(prompt.importance, prompt.options, layout)
    return replace(prompt, layout=layout, fresh=fresh.astype(np.int32))


def test_what_is_nested_under_an_important_line_comes_with_it() -> None:
    """Late are line 40 and what the fresh selection has of the lines under it, although they matter little."""
    prompt = in_lines(second([40, 20, 21, 22, 23, 24, 25], keep_rate=0.13))
    flat = np.zeros(prompt.layout.units.size, np.int32)
    nested = flat.copy()
    nested[41:46] = 4
    late = {}
    for name, indents in (("flat", flat), ("nested", nested)):
        kept = extend(of_text(prompt, indents=indents), KNOWN)
        late[name] = set(kept.positions[kept.reused :].tolist()) & set(DOCUMENT)
    assert late["flat"] == set(chunk(40))
    assert late["nested"] == set(range(40 * CHUNK, 46 * CHUNK))


def test_what_is_linked_with_an_important_line_comes_with_it() -> None:
    """Line 50 shares an identifier with line 40, which alone matters. By itself it matters less than any other line."""
    prompt = in_lines(second([40], keep_rate=0.13))
    prompt.importance[chunk(50)] = 0.0
    flat, late = np.zeros(prompt.layout.units.size, np.int32), []
    for links in (np.empty((0, 2), np.int32), np.array([[40, 50]], np.int32)):
        kept = extend(of_text(prompt, indents=flat, links=links), KNOWN)
        late.append([set(chunk(line)) <= set(kept.positions[kept.reused :].tolist()) for line in (40, 50)])
    assert late == [[True, False], [True, True]]


def test_late_text_is_not_read_under_the_label_of_another() -> None:
    """Lines 40 and 50 are late. Line 38, the label of line 40, comes with it. That of line 50 stands already."""
    prompt = in_lines(second([40, 50], keep_rate=0.13))
    headings = np.arange(prompt.layout.units.size, dtype=np.int32)
    standing = int(KNOWN.positions[KNOWN.positions < min(DOCUMENT) + SIZE // 2][-1]) // CHUNK
    headings[40], headings[50] = 38, standing
    kept = extend(of_text(prompt, indents=np.zeros_like(headings), headings=headings), KNOWN)
    new = kept.positions[kept.reused :].tolist()
    late = [position for position in new if position in set(DOCUMENT)]
    assert late[:CHUNK] == chunk(50)
    assert late[CHUNK : 3 * CHUNK] == [*chunk(38), *chunk(40)]


def test_max_keep_bounds_the_extended_prompt() -> None:
    important = [40, 41, 20, 21, 22, 23, 24]
    size = extend(second(important), KNOWN).positions.size
    enough, short = (size + 1) / SIZE, (size - 1) / SIZE
    assert not extend(second(important, max_keep=enough), KNOWN).compacted
    compacted = extend(second(important, max_keep=short), KNOWN)
    assert compacted.compacted
    assert compacted.positions.tolist() == second(important).fresh.tolist()


def test_another_question_about_the_document_reuses_up_to_the_first_question() -> None:
    common = 2090
    other = turn(2200, [40, 20, 21, 22, 23, 24, 25], [(0, 32), (2080, 2200)], (2090, 2190))
    kept = extend(other, KnownPrefix(FIRST.fresh, 2200, common))
    stands = FIRST.fresh[FIRST.fresh < common]
    assert kept.positions.tolist() == [*stands, *chunk(40), *range(2090, 2200)]
    assert kept.reused == stands.size


def test_an_edited_history_reuses_up_to_the_edit() -> None:
    common = 70
    kept = extend(second([20, 21, 22, 23, 24, 25, 1]), KnownPrefix(FIRST.fresh, 2200, common))
    assert kept.positions[: kept.reused].tolist() == [p for p in FIRST.fresh if p < common]


def test_a_late_chunk_that_stands_after_another_question_is_not_taken_for_the_document() -> None:
    """The record's prefix ends at the first token that the new prompt does not share."""
    order = np.array([*FIRST.fresh, *range(2200, 2230), *chunk(50), *range(2230, 2300)], np.int32)
    kept = extend(second([50, 20, 21, 22, 23, 24, 25]), KnownPrefix(order, 2300, 2210))
    assert kept.reused == FIRST.fresh.size + 10
    assert kept.positions[: kept.reused].tolist() == order[: kept.reused].tolist()
    assert np.unique(kept.positions).size == kept.positions.size


def test_the_same_prompt_again_is_the_record() -> None:
    kept = extend(FIRST, KNOWN)
    assert kept.positions.tolist() == FIRST.fresh.tolist()
    assert (kept.reused, kept.compacted) == (FIRST.fresh.size, False)


def test_a_question_that_stands_already_is_read_again_after_its_late_chunks() -> None:
    again = turn(2200, [40, 20, 21, 22, 23, 24, 25], [(0, 32), (2080, 2200)], (2090, 2190))
    kept = extend(again, KNOWN)
    assert kept.positions.tolist() == [*FIRST.fresh[FIRST.fresh < 2090], *chunk(40), *range(2090, 2200)]


def test_a_long_new_text_is_selected_and_a_short_one_is_not() -> None:
    long = turn(4000, [100, 40, 20, 21, 22, 23, 24], [(0, 32), (2230, 2240), (3900, 4000)], (3920, 3990))
    kept = set(extend(long, KNOWN).positions.tolist())
    assert set(chunk(100)) <= kept
    assert set(range(2200, 2230)) <= kept  # the answer
    assert not set(chunk(90)) & kept
    assert not set(range(2440, 2480)) & kept


def test_a_tool_turn_reads_late_chunks_before_its_result() -> None:
    """The call stays behind the record, as in the cache. The question stands already; there is no new one."""
    spans = [(0, 32), (2080, 2260), (2380, 2400)]
    tool = turn(2400, [40, 20, 21, 22, 23, 24, 25], spans)
    kept = extend(tool, KNOWN)
    assert kept.positions.tolist() == [*FIRST.fresh, *range(2200, 2260), *chunk(40), *range(2260, 2400)]


def test_a_history_without_the_reasoning_reuses_up_to_it() -> None:
    """The generation prompt ended with a tag that the template leaves out of the history."""
    kept = extend(second([40, 20, 21, 22, 23, 24, 25]), KnownPrefix(FIRST.fresh, 2200, 2197))
    stands = FIRST.fresh[FIRST.fresh < 2197]
    assert kept.positions.tolist() == [*stands, *range(2197, QUESTION), *chunk(40), *range(QUESTION, SIZE)]


def test_a_pasted_document_is_a_fresh_selection_if_that_reads_no_more() -> None:
    common = 32
    pasted = turn(2300, [40, 41, 42, 43, 44, 45, 46], SPANS, (QUESTION, 2290))
    kept = extend(pasted, KnownPrefix(FIRST.fresh, 2200, common))
    assert kept.positions.tolist() == pasted.fresh.tolist()
    assert kept.reused == 32  # both begin with the template


def test_a_fresh_selection_of_everything_is_dense() -> None:
    kept = extend(second([1], keep_rate=1.0), KNOWN)
    assert kept.positions.tolist() == list(range(SIZE))


def test_tokens_are_late_one_by_one() -> None:
    importance = np.full(400, 1e-3, np.float32)
    importance[[50, 60, 70]] = 1.0
    options = SelectionOptions(keep_rate=0.2, granularity="token", protect_last=8)
    known = KnownPrefix(np.array([3, 0, *range(4, 45), *range(330, 350)], np.int32), 350, 350)
    fresh, _ = select(importance, options)
    layout = layout_of([(0, 1)], question=(380, 400))
    prompt = Prompt(importance, fresh.astype(np.int32), options, layout)
    kept = extend(prompt, known)
    assert kept.reused == 63
    assert kept.positions[:2].tolist() == [3, 0]
    late = kept.positions[kept.reused + 30 :][: kept.late]
    assert {50, 60, 70} <= set(late.tolist())


def test_coverage_chooses_late_chunks_too() -> None:
    prompt = second([40, 20, 21, 22, 23, 24, 25], coverage=0.9)
    kept = extend(prompt, KNOWN)
    assert set(chunk(40)) <= set(kept.positions[kept.reused :].tolist())


@st.composite
def conversations(draw: st.DrawFn) -> tuple[Prompt, KnownPrefix]:
    """Any record of any order, and any prompt that shares some of it."""
    known_tokens = draw(st.integers(1, 300))
    kept = draw(st.sets(st.integers(0, known_tokens - 1), max_size=known_tokens)) | {known_tokens - 1}
    order = np.array(draw(st.permutations(sorted(kept))), np.int32)
    size = draw(st.integers(1, 700))
    common = draw(st.integers(1, min(known_tokens, size)))
    bounds = st.lists(st.integers(0, size), min_size=2, max_size=2, unique=True).map(sorted)
    spans = [(a, b) for a, b in draw(st.lists(bounds, max_size=4))]
    question = draw(st.none() | bounds.map(tuple))
    options = SelectionOptions(
        keep_rate=draw(st.sampled_from([0.01, 0.1, 0.5, 1.0])),
        coverage=draw(st.sampled_from([None, 0.3, 1.0])),
        granularity=draw(st.sampled_from(["chunk", "token"])),
        chunk_size=draw(st.sampled_from([1, 7, 32, 1000])),
        protect_last=draw(st.sampled_from([1, 32, 4000])),
        max_keep=draw(st.sampled_from([None, 0.2, 1.0])),
    )
    importance = np.random.default_rng(draw(st.integers(0, 99))).random(size, np.float32)
    layout = layout_of(spans, question=question)
    fresh, _ = select(importance, options, layout)
    prompt = Prompt(importance, fresh.astype(np.int32), options, layout)
    return prompt, KnownPrefix(order, known_tokens, common)


@given(conversations())
def test_any_extension_keeps_what_must_be_kept(conversation: tuple[Prompt, KnownPrefix]) -> None:
    prompt, known = conversation
    kept = extend(prompt, known)
    positions = kept.positions
    assert np.unique(positions).size == positions.size
    assert positions.min() >= 0
    assert positions[-1] == prompt.size - 1  # the next token is decoded from it
    assert set(np.flatnonzero(prompt.protected)) <= set(positions)
    assert kept.reused <= known.positions.size
    assert positions[: kept.reused].tolist() == known.positions[: kept.reused].tolist()
    assert (positions[: kept.reused] < known.common).all()
    if not np.array_equal(positions, prompt.fresh):
        share = prompt.options.max_keep
        assert positions.size <= (3 * prompt.fresh.size if share is None else share * prompt.size)
        if prompt.question:
            late = positions[kept.reused :]
            late = late[late < known.common]
            ahead = np.flatnonzero(np.isin(positions, late)).max(initial=-1)
            behind = np.flatnonzero(
                np.isin(positions, np.arange(known.common, prompt.size))
                & (positions >= max(prompt.question[0], known.common))
            )
            assert ahead < behind.min()


@pytest.mark.parametrize("size", [1, 2, 33])
def test_tiny_prompts(size: int) -> None:
    prompt = turn(size, [])
    known = KnownPrefix(np.arange(size, dtype=np.int32), size, size)
    assert isinstance(extend(prompt, known), Extended)
    assert extend(prompt, known).positions.tolist() == prompt.fresh.tolist()
