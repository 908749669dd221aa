"""A prompt asks for admission, by what is known of it, and leaves out what the load has no room for."""

from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from actors.observability.metrics import Meter
from kv_transfer.options import AUTO
from router.admission.api_keys import FIRST_PRIORITY
from router.admission.controller import Admission
from router.admission.ticket import AdmissionRequest, Ticket
from router.decision.cost_model import Work
from router.decision.forecaster import Forecaster
from router.decision.guard import says_how_much
from router.decision.rules import Decision
from router.dispatch.request import Prepared, Prompt, Request
from router.dispatch.state import CallState, Outcome
from router.options.request import PrefillOptions


def asking(prompt: Prompt, call: CallState) -> AdmissionRequest:
    """What is known of a prompt that asks for admission before it is read."""
    request = call.request
    step = request.beam_search and call.group.prompts > 0
    # A beam search's later steps go before all others, because their request runs already.
    priority = FIRST_PRIORITY if step else prompt.priority
    share = request.caller.key.share if request.caller else 1.0
    return AdmissionRequest(request.key, share, priority, request.deadline, call.group)


def admit(
    admission: Admission,
    forecaster: Forecaster,
    prepared: Prepared,
    call: CallState,
    decision: Decision,
) -> AbstractAsyncContextManager[Ticket]:
    """As `Admission.admitted`, for a prompt in the mode of `decision`."""
    request, most_tokens, asked = call.request, prepared.prompt.max_tokens, asking(prepared.prompt, call)
    drafts = prepared.reads_for_drafts
    work = forecaster.work(
        prepared.forecast, prepared.options, most_tokens, selects=decision.speculative, reads_for_drafts=drafts
    )
    if not prepared.prompt.answers:
        work = replace(work, target_ms=0.0, answers=False)
    less: Work | None = None
    if decision.speculative and (options := _with_least_keep(prepared, request)) is not None:
        less = forecaster.work(prepared.forecast, options, most_tokens, selects=True, reads_for_drafts=drafts)
    return admission.admitted(asked, work, less)


def shed_load(prepared: Prepared, outcome: Outcome, ticket: Ticket, meter: Meter) -> Prepared:
    """The prompt without what the load leaves no room for (`router.admission.ticket`)."""
    if ticket.keeps_less and (options := _with_least_keep(prepared, outcome.call.request)) is not None:
        meter.record("skim_router_shed_total", 1, kind="keep")
        outcome.notes["shed"] = "keep"
        return replace(prepared, options=options)
    return prepared


def _with_least_keep(prepared: Prepared, request: Request) -> PrefillOptions | None:
    """The options with the smallest keep rate. None if they keep that, or if the client says how much is kept."""
    options = prepared.options
    explicit = options.enabled != AUTO or says_how_much(options)
    if explicit or request.keep_fields is not None:
        return None
    return least_keep(options)


def least_keep(options: PrefillOptions) -> PrefillOptions | None:
    """The options with the smallest keep rate that the deployment allows; None if they keep no more than that."""
    share = options.fixed_rate if options.fixed_rate is not None else options.largest_share
    if share <= options.min_keep:
        return None
    return options.model_copy(update={"keep_rate": options.min_keep, "coverage": None})
