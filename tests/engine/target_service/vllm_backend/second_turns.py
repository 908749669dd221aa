"""Second turns after answers with drafts, compared with the oracle."""

import numpy as np

from kv_transfer.messages import KeptPrompt
from kv_transfer.options import DecodeOptions
from target_service.engine import TargetEngine
from tests.engine.target_service.vllm_backend.broken_hooks import BreakableTarget
from tests.engine.target_service.vllm_backend.cases import (
    TOLERANCE,
    VOCABULARY,
    cached_tokens,
    collect,
    dense_prompt,
    kept_prompt,
)
from tests.engine.target_service.vllm_backend.drafting import MAX_DRAFTS, Case, decode, with_session
from tests.reference.drafters import FakeSpeculator
from tests.reference.generation_oracle import GenerationOracle, joined
from tests.reference.models import random_prompt
from tests.reference.segments import next_turn, with_late_chunk


async def second_turns(
    engine: BreakableTarget, oracle: GenerationOracle, cases: list[Case], speculator: FakeSpeculator, stopped: bool
) -> int:
    """Answer with drafts, then a second turn each. Returns the wrong tokens of the second turns.

    stopped: the first answers end at a stop token, perhaps among accepted drafts.
    """
    options, wrong_tokens = DecodeOptions(max_draft_tokens=MAX_DRAFTS, adaptive=False), 0
    for i, case in enumerate(cases):
        ending = {"stop_token_ids": [case.answer[40]]} if stopped else {}
        answer = await decode(engine, with_session(case, speculator), case.name, options, **ending)
        chunk = kept_prompt(case.prompt.context_length, 30, seed=900 + i)
        new = ~np.isin(chunk.positions, case.prompt.positions)
        late = KeptPrompt(chunk.token_ids[new], chunk.positions[new], chunk.context_length)
        turn = next_turn(case.prompt, np.array(answer, np.int32), late, dense_prompt(9, seed=i).token_ids)
        outputs = await collect(engine, turn, f"{case.name}-turn-2", max_tokens=8)
        wrong_tokens += oracle.wrong_tokens(turn, joined(outputs)[0])
        # All but the answer's last token, whose KV nobody needed. A stop token may be an accepted draft with KV.
        most = case.prompt.token_ids.size + len(answer)
        assert outputs[0].cached_tokens in cached_tokens(most - 1, most)
    return wrong_tokens


async def assert_appended_is_right(engine: TargetEngine, oracle: GenerationOracle) -> None:
    """A chunk before the last 8 tokens; then a second turn after the answer, with another late chunk. Both reuse the
    blocks of what stands."""
    ids = np.array(random_prompt(1200, seed=20, vocab_size=VOCABULARY), np.int32)
    first = kept_prompt(1200, 400, seed=20)
    dropped = np.setdiff1d(np.arange(1200, dtype=np.int32), first.positions)
    answer, _, _ = joined(await collect(engine, first))
    late = with_late_chunk(first, ids, dropped[:64], last=8)
    chunk = KeptPrompt(ids[dropped[90:130]], dropped[90:130], 1200)
    second = next_turn(first, np.array(answer, np.int32), chunk, dense_prompt(20, seed=21).token_ids)
    cached = []
    for prompt in (late, second):
        outputs = await collect(engine, prompt)
        tokens, logprobs, _ = joined(outputs)
        assert oracle.wrong_tokens(prompt, tokens) == 0
        assert oracle.largest_difference(prompt, tokens, logprobs) <= TOLERANCE
        cached.append(outputs[0].cached_tokens)
    # What stands before the chunk, and before the answer's last token.
    assert cached == cached_tokens(392, 463)
