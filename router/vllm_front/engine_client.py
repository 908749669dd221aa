"""vLLM's `EngineClient` without an engine: every generation goes to the two pools."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import aclosing
from http import HTTPStatus
from typing import Any

import msgspec
import numpy as np
from vllm.config import VllmConfig
from vllm.engine.protocol import EngineClient
from vllm.exceptions import GracefulHTTPError, VLLMValidationError
from vllm.logprobs import Logprob
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.renderers import renderer_from_config
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.input_processor import InputProcessor

from kv_transfer.limits import reserved_names
from kv_transfer.messages import ADAPTER, GenerateOutput, TokenLogprob
from router.admission.api_keys import FIRST_PRIORITY
from router.dispatch.dispatcher import Dispatcher
from router.dispatch.request import Prompt, Request
from router.dispatch.state import CURRENT, CallState
from router.options.errors import HttpError, InvalidOptionError
from router.prompt.context_edits import FIELD
from router.prompt.control_tokens import ControlTokens
from router.prompt.rendered import RenderedPrompt
from router.vllm_front.renderer import ChatRecorder
from skim_common.errors import InvalidRequestError, SkimError

logger = logging.getLogger(__name__)

_SLICE = 256
"""Positions of a prompt whose log probabilities are converted at a time."""

_ENGINE_ARGS = ("trace_headers", "reasoning_ended", "reasoning_parser_kwargs")
"""Arguments of `generate` that are passed on to the target's engine."""


async def _false(self: Any) -> bool:
    return False


async def _nothing(self: Any, *args: Any, **kwargs: Any) -> None:
    """The engines do it by themselves; closing the generator of `generate` aborts a request in both pools."""


def _refusing(what: str) -> Callable[..., Any]:
    """A method for what only engines do."""

    def refuse(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise VLLMValidationError(f"the router does not take {what}; ask the engines' own servers")

    return refuse


class PooledEngineClient(EngineClient):
    """An `EngineClient` whose engine is the two pools behind a `Dispatcher`."""

    is_running = property(lambda self: True)
    is_stopped = errored = property(lambda self: False)
    dead_error = property(lambda self: RuntimeError("the router has no engine that could die"))
    is_tracing_enabled = is_sleeping = is_paused = _false
    # Serve checks the pools; a router that answers is healthy.
    check_health = abort = do_log_stats = notify_kv_transfer_request_rejected = _nothing
    encode = _refusing("pooling requests")
    start_profile = stop_profile = _refusing("profiling")
    reset_mm_cache = reset_encoder_cache = reset_prefix_cache = _refusing("cache resets")
    sleep = wake_up = _refusing("sleep")
    pause_generation = resume_generation = _refusing("pausing")

    def __init__(self, vllm_config: VllmConfig, dispatcher: Dispatcher, adapters: Collection[str] = ()) -> None:
        """adapters: the names of the LoRA adapters that the target has."""
        self.vllm_config = vllm_config
        self.model_config = vllm_config.model_config
        self.renderer = renderer_from_config(vllm_config)
        self.input_processor = InputProcessor(vllm_config, self.renderer)
        self._dispatcher = dispatcher
        self._adapters = adapters
        backend = getattr(self.renderer.get_tokenizer(), "backend_tokenizer", None)
        handling = dispatcher.settings.control_tokens
        ChatRecorder(self.renderer, ControlTokens(backend, handling) if backend is not None else None)

    async def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, **kwargs: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        """Run one prompt through the pools. Raises vLLM's errors; the call keeps the error for the client."""
        call = CURRENT.get() or CallState(Request(self._dispatcher.defaults, self._dispatcher.decode_defaults.decode))
        try:
            rendered = _read_prompt(prompt, sampling_params, call, kwargs)
            async with aclosing(self._dispatcher.run(request_id, rendered, call)) as stream:
                async for output in stream:
                    yield await _request_output(request_id, prompt, output)
        except Exception as error:
            if not isinstance(error, SkimError):
                logger.exception("request %s failed in the router", request_id)
            call.error = shown = HttpError.of(error)  # vLLM may have started the response
            if shown.status == HTTPStatus.BAD_REQUEST:
                raise VLLMValidationError(shown.message, parameter=shown.param) from None
            raise GracefulHTTPError(shown.message, HTTPStatus(shown.status)) from None

    async def get_supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    async def add_lora(self, lora_request: Any) -> bool:
        """The front announces an adapter. Each replica of the target has loaded those of its list before it served, and
        loads no others."""
        if lora_request.lora_name not in self._adapters:
            _refusing("further LoRA adapters: name them in target.engine_options.lora_modules")(self)
        return True

    def shutdown(self, timeout: float | None = None) -> None:
        """The pools run on without the router."""


def _read_prompt(prompt: Any, params: SamplingParams, call: CallState, kwargs: Mapping[str, Any]) -> Prompt:
    """vLLM's EngineInput and SamplingParams as the dispatcher's Prompt. Raises InvalidRequestError."""
    if not isinstance(prompt, Mapping) or not prompt.get("prompt_token_ids"):
        raise InvalidRequestError("this endpoint takes prompts of text or token ids only")
    if prompt.get("type") != "token":
        raise InvalidRequestError("images, audio and video are not served here; send the text alone")
    if reserved := reserved_names(params.extra_args or ()):
        raise InvalidRequestError(f"{reserved[0]} is reserved for the server; leave it out")
    request, text = call.request, prompt.get("prompt")
    least = request.caller.key.min_priority if request.caller else FIRST_PRIORITY
    priority = kwargs.get("priority") or 0
    if not FIRST_PRIORITY <= priority < 2**63:
        raise InvalidRequestError("the priority header must be an integer of 64 bits")
    if priority < least:
        raise InvalidRequestError(f"priority must be at least {least} with this API key")
    if request.edits and text not in call.chats:
        raise InvalidOptionError(f"{FIELD} has no effect on prompts that no chat template makes; leave it out", FIELD)
    if request.keep_fields is not None:
        request.keep_fields.check(text if text in call.chats else None)
    engine_args = {name: kwargs[name] for name in _ENGINE_ARGS if kwargs.get(name) is not None}
    if (lora := kwargs.get("lora_request")) is not None:
        engine_args[ADAPTER] = lora.lora_name
    if (largest := max(prompt["prompt_token_ids"])) >= 2**31:
        raise InvalidRequestError(f"Token id {largest} is out of vocabulary")
    ids = np.asarray(prompt["prompt_token_ids"], np.int32)
    return Prompt(
        RenderedPrompt(ids, text, prompt.get("prompt_token_offsets"), call.chats.get(text)),
        sampling=msgspec.to_builtins(params, builtin_types=(bytes,)),
        max_tokens=params.max_tokens or 0,
        prompt_logprobs=params.prompt_logprobs is not None,
        cache_salt=request.salt(prompt.get("cache_salt"), engine_args.get(ADAPTER)),
        priority=priority,
        engine_args=engine_args,
    )


async def _request_output(request_id: str, prompt: Mapping[str, Any], output: GenerateOutput) -> RequestOutput:
    """A GenerateOutput in vLLM's form. It holds the client's whole prompt, so that usage counts all of its tokens."""
    positions, scores = output.prompt_logprobs or [], list[Any]()
    for begin in range(0, len(positions), _SLICE):
        scores += [one and _by_id(one) for one in positions[begin : begin + _SLICE]]
        await asyncio.sleep(0)  # other requests run in between: a long prompt takes seconds
    return RequestOutput(
        request_id=request_id,
        prompt=prompt.get("prompt"),
        prompt_token_ids=prompt["prompt_token_ids"],
        prompt_logprobs=None if output.prompt_logprobs is None else scores,
        outputs=[
            CompletionOutput(
                index=completion.index,
                text=completion.text,
                token_ids=completion.token_ids.tolist(),
                cumulative_logprob=completion.cumulative_logprob,
                logprobs=None if completion.logprobs is None else list(map(_by_id, completion.logprobs)),
                finish_reason=completion.finish_reason,
                stop_reason=completion.stop_reason,
            )
            for completion in output.completions
        ],
        finished=output.finished,
        num_cached_tokens=output.cached_tokens,
        num_cache_creation_tokens=output.created_tokens,
    )


def _by_id(candidates: list[TokenLogprob]) -> dict[int, Logprob]:
    """Of one position. vLLM takes the first entry as the sampled token."""
    return {one.token_id: Logprob(one.logprob, one.rank, one.decoded) for one in candidates}
