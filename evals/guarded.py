"""The selector of `enabled: auto` with the guard, as the router runs it: compressed, more, or dense."""

from typing import TYPE_CHECKING

from kv_transfer.messages import KeptPrompt
from kv_transfer.options import AUTO
from router.guard import Guard
from router.options import PrefillOptions

if TYPE_CHECKING:
    from evals.selectors import Reading


class _NotCounted:
    """A meter for a guard whose verdicts nobody counts."""

    def record(self, name: str, value: float, **tags: str) -> None:
        pass


async def keep_guarded(reading: "Reading") -> KeptPrompt:
    """The kept prompt with `keep_rate: auto` as the deployment's default; the dense prompt where the guard wants it."""
    prompt, guard = reading.prompt, Guard(_NotCounted(), enabled=True)
    # No field counts as set: the guard obeys a request that says how much to keep.
    defaults = reading.options.model_copy(update={"keep_rate": AUTO, "reuse": "off"}).model_dump()
    advice = guard.advise(PrefillOptions.model_construct(set(), **defaults), prompt.question_text)
    if advice.verdict == "dense":
        return KeptPrompt.dense(prompt.token_ids)
    selection = await reading.pair.select(prompt, advice.options.selection, cache_salt=reading.salt)
    if guard.distrusts(advice, selection, prompt.protected):
        return KeptPrompt.dense(prompt.token_ids)
    return selection.kept
