"""What is known of a prompt before its mode is chosen: spans, rules, guard and forecast."""

from collections.abc import Sequence
from typing import NamedTuple

from actors.observability.metrics import Meter
from kv_transfer.messages import ADAPTER
from kv_transfer.prefix_hash import block_hashes
from kv_transfer.windows import WindowPlan
from router.decision import guard
from router.decision.cache_ledger import BLOCK_TOKENS
from router.decision.forecaster import Forecaster
from router.decision.rules import Decision, RequestTraits, decide
from router.decision.window_reads import WindowReads
from router.dispatch.apart import apart
from router.dispatch.metrics import record_speeds
from router.dispatch.request import Prepared, Prompt, Request
from router.options.request import PrefillOptions
from router.pools.interface import Pools
from router.pools.prefix_affinity import PrefixKeys
from router.prompt.protected_spans import PromptSpans


class _Read(NamedTuple):
    """What the text of a prompt says. windows, hashes: as in Forecast."""

    spans: PromptSpans
    ruled: Decision
    guarded: bool
    needs_whole_text: bool
    options: PrefillOptions
    windows: WindowReads | None
    hashes: Sequence[bytes]


class Preparation:
    """keys: calls prefer the replica of their prefix. guard: it is on. The others are the dispatcher's."""

    def __init__(self, forecaster: Forecaster, meter: Meter, *, keys: bool, guard: bool) -> None:
        self._forecaster, self._meter, self._guard = forecaster, meter, guard
        self._keys = PrefixKeys() if keys else None

    async def prepare(self, pools: Pools, request_id: str, prompt: Prompt, request: Request) -> Prepared:
        """Raises InvalidRequestError for spans that are not in the prompt."""
        rendered = prompt.rendered
        read = await apart(rendered.length, self._read, pools, prompt, request)
        spans, ruled, guarded, needs_whole_text, options, windows, hashes = read
        for pool, model in (("speculator", pools.speculator), ("target", pools.target)):
            if model is not None:
                self._forecaster.know(pool, model, pools.replicas(pool))
        salt, hinted, adapted = prompt.cache_salt, request.later_requests, ADAPTER in prompt.engine_args
        forecast = self._forecaster.look(
            rendered.token_ids, salt, options, spans.layout, hinted, windows, adapted=adapted, hashes=hashes
        )
        record_speeds(self._meter, self._forecaster.speeds())  # here they are fitted anyway
        affinity = ""
        if self._keys:
            affinity = self._keys.key(rendered.token_ids, forecast.hashes, spans.opening, salt)
        decode = request.decode_for(prompt.sampling)
        return Prepared(
            prompt, request_id, options, decode, spans, ruled, guarded, needs_whole_text, forecast, affinity
        )

    def _read(self, pools: Pools, prompt: Prompt, request: Request) -> _Read:
        """Read the text, perhaps in a thread. The guard reads it only where the prompt does not run dense anyway."""
        rendered, speculator = prompt.rendered, pools.speculator
        spans = rendered.spans(request.options)
        layout, ruled = spans.layout, _rule(pools, prompt, request, spans)
        has_keep_fields = request.keep_fields is not None
        guarded = self._guard and ruled.speculative and guard.acts(request.options, has_keep_fields=has_keep_fields)
        needs_whole_text = guarded and guard.needs_whole_text(rendered.task_text(layout))
        may_drop = ~layout.fixed(rendered.size, request.options.protect_last)
        plan = WindowPlan.of(may_drop, layout, request.options.window_tokens)
        options = request.options.for_prompt(windows=bool(speculator and speculator.has_head_profile and plan))
        windows = WindowReads.of(options, plan, rendered.size, layout.frame.head.size if layout.frame else 0)
        hashes = block_hashes(rendered.token_ids, BLOCK_TOKENS, prompt.cache_salt)
        return _Read(spans, ruled, guarded, needs_whole_text, options, windows, hashes)


def _rule(pools: Pools, prompt: Prompt, request: Request, spans: PromptSpans) -> Decision:
    """What the rules say of the prompt."""
    size = prompt.rendered.size
    traits = RequestTraits(
        prompt_tokens=size,
        prompt_logprobs=prompt.prompt_logprobs,
        echo=request.echo,
        beam_search=request.beam_search,
        compressible_tokens=size - spans.protected_tokens,
        rated=spans.layout.rates.size > 0,
        unmapped=spans.unmapped,
        no_task=prompt.rendered.text is not None and not len(spans.layout.questions),
        untrusted=pools.untrusted,
    )
    return decide(traits, request.options)
