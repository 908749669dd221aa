"""A prompt's claim at the admission, by what is known of it, and how it runs by the place that it got."""

from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from actors.observability.metrics import Meter
from kv_transfer.options import AUTO
from router.admission.api_keys import FIRST_PRIORITY
from router.admission.controller import Admission
from router.admission.load_shedding import least_keep, lighter_decoding
from router.admission.ticket import Claim, Place
from router.decision.cost_model import Work
from router.decision.forecast import Forecaster
from router.decision.guard import WISHES
from router.decision.rules import Decision
from router.dispatch.prompt_run import Run
from router.options.request import PrefillOptions


def place_for(
    admission: Admission, forecaster: Forecaster, run: Run, decision: Decision
) -> AbstractAsyncContextManager[Place]:
    """As `Admission.admitted`, for the prompt of `run` in the mode of `decision`."""
    context, sizes = run.context, (run.spans.protected_tokens, run.prompt.max_tokens)
    step = context.beam_search and context.asked.prompts > 0
    # A beam search's later steps go before all others, because their request runs already.
    priority = FIRST_PRIORITY if step else run.prompt.priority
    claim = Claim(context.key, context.share, priority, context.deadline, context.asked)
    work = forecaster.work(run.forecast, run.advice.options, *sizes, selects=decision.speculative)
    less: Work | None = None
    if decision.speculative and (options := _with_least_keep(run)) is not None:
        less = forecaster.work(run.forecast, options, *sizes, selects=True)
    return admission.admitted(claim, work, less)


def lightened(run: Run, place: Place, meter: Meter) -> Run:
    """The prompt without what the load leaves no room for (`router.admission.load_shedding`); its outcome says what
    that is."""
    decode, shed = (run.decode, "") if run.context.decode_wished else lighter_decoding(run.decode, place.load)
    kinds, advice = [shed] if shed else [], run.advice
    if place.keeps_less and (options := _with_least_keep(run)) is not None:
        advice = replace(advice, options=options)
        run.outcome.options = options
        kinds.append("keep")
    for kind in kinds:
        meter.record("skim_router_shed_total", 1, kind=kind)
    run.outcome.shed = "+".join(kinds)
    return replace(run, decode=decode, advice=advice)


def _with_least_keep(run: Run) -> PrefillOptions | None:
    """The options with the smallest keep rate. None if they keep that, or if client or guard say how much is kept."""
    options = run.advice.options
    wished = options.enabled != AUTO or bool(options.model_fields_set & WISHES) or run.context.keeps is not None
    return None if wished or run.advice.verdict == "more" else least_keep(options)
