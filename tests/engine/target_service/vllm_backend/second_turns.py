"""Second turns after answers with drafts, compared with the oracle."""

import numpy as np

from kv_transfer.messages import KeptPrompt
from kv_transfer.options import DecodeOptions
from tests.engine.target_service.vllm_backend.broken_hooks import BreakableTarget
from tests.engine.target_service.vllm_backend.cases import cached_tokens, collect, dense_prompt, kept_prompt
from tests.engine.target_service.vllm_backend.drafting import MAX_DRAFTS, Case, decode, with_session
from tests.reference.drafters import FakeSpeculator
from tests.reference.generation_oracle import GenerationOracle, joined
from tests.reference.segments import next_turn


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
        assert outputs[0].cached_tokens in (*cached_tokens(engine, most - 1, most), most)
    return wrong_tokens
