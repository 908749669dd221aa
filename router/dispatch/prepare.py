"""The stages of a prompt before an engine gets it: what is known of it, whether it is selected from, its admission."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from kv_transfer.limits import check_target_length
from kv_transfer.messages import ADAPTER
from kv_transfer.options import AUTO
from kv_transfer.prefix_hash import block_hashes
from kv_transfer.windows import WindowPlan
from router.admission.api_keys import FIRST_PRIORITY
from router.admission.ticket import AdmissionRequest, Ticket
from router.decision import guard
from router.decision.catch_up import stays_dense
from router.decision.choice import CACHED, Decision, Selector, Work, decide, selector_of
from router.decision.conversations import shape_of
from router.decision.ledger import BLOCK_TOKENS
from router.decision.sizes import WindowReads
from router.dispatch.apart import apart
from router.dispatch.parts import Parts
from router.dispatch.request import Prepared, Prompt, Request
from router.dispatch.sampling_limits import check_sampling, first_logprobs
from router.dispatch.state import CallState, Outcome
from router.dispatch.telemetry import note_tokenized
from router.options.errors import RefusedError
from router.options.request import PrefillOptions
from router.prompt.rendered import PromptSpans
from skim_common.errors import InvalidRequestError

MAX_ID_CHARS = 512
"""Of a prompt's id, which is held with its explanation and travels to the pools. The client may choose most of it."""


def begin(request_id: str, outcome: Outcome) -> None:
    """Take a prompt's id. Raises InvalidRequestError."""
    if len(request_id) > MAX_ID_CHARS:
        message = f"the request's id has more than {MAX_ID_CHARS} characters; shorten x-request-id or request_id"
        raise InvalidRequestError(message)
    outcome.call.request_id = outcome.call.request_id or request_id
    note_tokenized(outcome.call.span, outcome)


def check_answer(parts: Parts, prompt: Prompt, outcome: Outcome) -> None:
    """Raise SkimError for what no engine can answer, before anything is computed for it."""
    if parts.settings.select_only:
        raise RefusedError(404, "NotFoundError", "no target runs here, so nothing is answered; ask /v1/select")
    call, size = outcome.call, outcome.prompt_tokens
    check_sampling(prompt.sampling)
    call.add_logprobs(first_logprobs(size, prompt.sampling, parts.pools.target.vocab_size))
    # The whole prompt must fit, because it runs dense if the selection fails.
    check_target_length(size, size, prompt.max_tokens, parts.pools.target)


async def prepare(parts: Parts, request_id: str, prompt: Prompt, request: Request) -> Prepared:
    """What is known of a prompt before its mode is chosen. Raises InvalidRequestError for spans that are not in it.

    Under `selector: auto` the words are looked up only if the prompt would run speculative by them.
    """
    rendered, pools, forecaster, salt = prompt.rendered, parts.pools, parts.forecaster, prompt.cache_salt
    read = await apart(rendered.length, _read_text, parts, prompt, request)
    spans, ruled, advice, plan, hashes = read
    for pool, model in (("speculator", pools.speculator), ("target", pools.target)):
        if model is not None:
            forecaster.know(pool, model, pools.replicas(pool))
    speculator, layout = pools.speculator, spans.layout
    affinity = parts.keys.key(rendered.token_ids, hashes, spans.opening, salt) if parts.keys else ""
    decode, adapted = request.decode_for(prompt.sampling), ADAPTER in prompt.engine_args

    def by(selector: Selector) -> Prepared:
        options = request.options.model_copy(update={"selector": selector})
        options = options.for_prompt(windows=bool(speculator and speculator.has_head_profile and plan))
        windows = WindowReads.of(options, plan, rendered.size, layout.frame.head.size if layout.frame else 0)
        forecast = forecaster.look(
            rendered.token_ids, salt, options, layout, request.later_requests, windows, adapted=adapted, hashes=hashes
        )
        return Prepared(prompt, request_id, options, decode, spans, ruled, advice, forecast, affinity)

    prepared = by(selector_of(request.options, layout, speculator, 1.0))
    if request.options.selector == AUTO and prepared.options.selector == "lexical" and prepared.may_select:
        prepared = await apart(rendered.length, prepared.with_units)
        selector = selector_of(request.options, layout, speculator, prepared.layout.placed)
        if selector != prepared.options.selector:
            prepared = replace(by(selector), spans=prepared.spans)
    return prepared


def _read_text(
    parts: Parts, prompt: Prompt, request: Request
) -> tuple[PromptSpans, Decision, str, WindowPlan | None, Sequence[bytes]]:
    """What the text of a prompt says, as in Prepared: spans, ruled, advice; the plan of its windows and the hashes of
    its blocks. Perhaps in a thread. The guard reads a text only where the prompt does not run dense anyway."""
    rendered, options = prompt.rendered, request.options
    spans = rendered.spans(options)
    ruled = decide(
        options,
        rendered.size,
        spans,
        has_text=rendered.text is not None,
        untrusted=parts.pools.untrusted,
        prompt_logprobs=prompt.prompt_logprobs,
        echo=request.echo,
        beam_search=request.beam_search,
    )
    advice = ""
    if parts.settings.guard and ruled.speculative and guard.acts(options, request.keep_fields is not None):
        advice = "whole-text" if guard.needs_whole_text(rendered.task_text(spans.layout)) else "none"
    may_drop = ~spans.layout.fixed(rendered.size, options.protect_last)
    plan = WindowPlan.of(may_drop, spans.layout, options.window_tokens)
    hashes = block_hashes(rendered.token_ids, BLOCK_TOKENS, prompt.cache_salt)
    return spans, ruled, advice, plan, hashes


def choose(parts: Parts, outcome: Outcome) -> Decision:
    """Whether the prompt runs dense or speculative."""
    prepared = outcome.prepared
    decision, chat = prepared.ruled, prepared.prompt.rendered.chat
    outcome.shape = shape_of(chat and chat.roles, has_tools=outcome.call.request.has_tools)
    if decision.speculative and prepared.options.enabled == AUTO:
        decision, outcome.estimate = prepared.forecast.choice, prepared.forecast.estimate
        known = prepared.forecast.known_dense if outcome.caught_up else 0
        if decision.speculative and stays_dense(decision, known, prepared.size):
            decision = CACHED
    if decision.speculative and (advice := prepared.advice):
        if advice == "none" and not parts.agreements.trusts((outcome.call.request.key, outcome.shape)):
            advice = "agreement"
        verdict = "compressed" if advice == "none" else "dense"
        parts.meter.record("skim_router_guard_total", 1, verdict=verdict, reason=advice)
        if advice != "none":
            decision = Decision(False, f"guard-{advice}")
    outcome.decided(decision)
    return decision


def asking(prompt: Prompt, call: CallState) -> AdmissionRequest:
    """What is known of a prompt that asks for admission before it is read."""
    request = call.request
    step = request.beam_search and call.group.prompts > 0
    # A beam search's later steps go before all others, because their request runs already.
    priority = FIRST_PRIORITY if step else prompt.priority
    share = request.caller.key.share if request.caller else 1.0
    return AdmissionRequest(request.key, share, priority, request.deadline, call.group)


def admit(parts: Parts, outcome: Outcome, decision: Decision) -> AbstractAsyncContextManager[Ticket]:
    """As `Admission.admitted`, for a prompt in the mode of `decision`."""
    prepared, call, speculative = outcome.prepared, outcome.call, decision.speculative
    prompt, drafts = prepared.prompt, prepared.reads_for_drafts

    def work(options: PrefillOptions) -> Work:
        return parts.forecaster.work(
            prepared.forecast, options, prompt.max_tokens, selects=speculative, reads_for_drafts=drafts
        )

    asked = work(prepared.options)
    if not prompt.answers:
        asked = replace(asked, target_ms=0.0, answers=False)
    lower = with_least_keep(prepared, call.request) if speculative else None
    return parts.admission.admitted(asking(prompt, call), asked, work(lower) if lower else None)


def shed_load(parts: Parts, outcome: Outcome, ticket: Ticket) -> None:
    """Leave out what the load has no room for (`router.admission.ticket`)."""
    prepared, request = outcome.prepared, outcome.call.request
    if ticket.keeps_less and (options := with_least_keep(prepared, request)) is not None:
        parts.meter.record("skim_router_shed_total", 1, kind="keep")
        outcome.notes["shed"] = "keep"
        outcome.prepared = replace(prepared, options=options)


def with_least_keep(prepared: Prepared, request: Request) -> PrefillOptions | None:
    """The options with the smallest keep rate that the deployment allows. None if they keep no more than that, or if
    the client says how much is kept."""
    options = prepared.options
    share = options.largest_share if options.fixed_rate is None else options.fixed_rate
    if share <= options.min_keep or not guard.acts(options, request.keep_fields is not None):
        return None
    return options.least
