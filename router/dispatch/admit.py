"""A prompt asks for admission, by what is known of it, and leaves out what the load has no room for."""

from contextlib import AbstractAsyncContextManager

from actors.observability.meter import Meter
from kv_transfer.options import AUTO
from router.admission.api_keys import FIRST_PRIORITY
from router.admission.controller import Admission
from router.admission.load_shedding import least_keep, lighter_decoding
from router.admission.ticket import AdmissionRequest, Ticket
from router.decision.cost_model import Work
from router.decision.forecast import Forecaster
from router.decision.guard import EXPLICIT
from router.decision.rules import Decision
from router.dispatch.state import PromptState
from router.options.request import PrefillOptions


def admit(
    admission: Admission, forecaster: Forecaster, state: PromptState, decision: Decision
) -> AbstractAsyncContextManager[Ticket]:
    """As `Admission.admitted`, for a prompt in the mode of `decision`."""
    call, request = state.call, state.call.request
    most_tokens = state.prompt.max_tokens
    step = request.beam_search and call.group.prompts > 0
    # A beam search's later steps go before all others, because their request runs already.
    priority = FIRST_PRIORITY if step else state.prompt.priority
    share = request.caller.key.share if request.caller else 1.0
    asking = AdmissionRequest(request.key, share, priority, request.deadline, call.group)
    drafts = state.reads_for_drafts
    work = forecaster.work(
        state.forecast, state.options, most_tokens, selects=decision.speculative, reads_for_drafts=drafts
    )
    less: Work | None = None
    if decision.speculative and (options := _with_least_keep(state)) is not None:
        less = forecaster.work(state.forecast, options, most_tokens, selects=True, reads_for_drafts=drafts)
    return admission.admitted(asking, work, less)


def shed_load(state: PromptState, ticket: Ticket, meter: Meter) -> None:
    """Take from the prompt what the load leaves no room for (`router.admission.load_shedding`)."""
    kinds: list[str] = []
    if not state.call.request.decode_is_explicit:
        state.decode, shed = lighter_decoding(state.decode, ticket.load)
        kinds += [shed] if shed else []
    if ticket.keeps_less and (options := _with_least_keep(state)) is not None:
        state.options = options
        kinds.append("keep")
    for kind in kinds:
        meter.record("skim_router_shed_total", 1, kind=kind)
    state.shed = "+".join(kinds)


def _with_least_keep(state: PromptState) -> PrefillOptions | None:
    """The options with the smallest keep rate. None if they keep that, or if client or guard say how much is kept."""
    options = state.options
    explicit = options.enabled != AUTO or bool(options.model_fields_set & EXPLICIT)
    if explicit or state.call.request.keep_fields is not None or state.advice.verdict == "more":
        return None
    return least_keep(options)
