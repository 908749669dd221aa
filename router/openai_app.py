"""vLLM's own HTTP app over an engine client that has no engine: every generation goes to the two pools.

This is the only file of the router that imports vLLM (0.29.0). It uses `EngineClient` (vllm/engine/protocol.py),
`build_app` and `init_app_state` (vllm/entrypoints/launchers). The methods of its renderer that `router.recording`
replaces are of vllm/renderers/base.py.
"""

import logging
import traceback
import types
from collections.abc import AsyncGenerator, Iterable, Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from vllm import envs
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.engine.protocol import EngineClient
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.entrypoints.serve.exception_handling.handlers.exception import exception_handler
from vllm.entrypoints.serve.middleware.authenticate import AuthenticationMiddleware
from vllm.exceptions import GracefulHTTPError, VLLMValidationError
from vllm.logprobs import Logprob
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.renderers import renderer_from_config
from vllm.sampling_params import SamplingParams
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine.input_processor import InputProcessor

from actors.observability.tracing import NO_TRACER, Tracer
from kv_transfer.errors import InvalidRequestError, SkimError
from kv_transfer.messages import GenerateOutput, TokenLogprob
from router.api_keys import FIRST_PRIORITY, ApiKeys
from router.authentication import KeyMiddleware
from router.context import CURRENT, HttpError, RequestContext
from router.control_tokens import ControlTokens, Handling
from router.dispatch import Dispatcher
from router.intake import Intake
from router.middleware import SkimMiddleware
from router.recording import record_chats
from router.request_limits import BodyLimits
from router.request_reports import RequestReports
from router.run import Prompt
from router.tokenizing import reuse_known_tokens
from target_service.limits import reserved_names

logger = logging.getLogger(__name__)

# The functions that read a body: FastAPI's (fastapi.dependencies.utils), and vLLM's for the messages of a chat
# (vllm.entrypoints.chat_utils) and for the items of a response (vllm.entrypoints.openai.responses.utils).
_READ_BODIES = {
    "request_body_to_args", "parse_chat_messages", "parse_chat_messages_async", "construct_input_messages",
}  # fmt: skip

# Arguments of `generate` that are passed on to the target's engine.
_ENGINE_ARGS = ("trace_headers", "reasoning_ended", "reasoning_parser_kwargs")


async def build_openai_app(
    dispatcher: Dispatcher,
    folder: str,
    root: str,
    served_model_name: str,
    max_model_len: int,
    vllm_args: Mapping[str, Any],
    tracer: Tracer = NO_TRACER,
    deadline_s: float | None = None,
    api_keys_file: str | None = None,
    limits: BodyLimits = BodyLimits(),  # noqa: B008
    keep_alive_s: float = 0.0,
    reports: RequestReports | None = None,
    control_tokens: Handling = "text",
    intake: Intake | None = None,
) -> FastAPI:
    """The HTTP app. vllm_args: options of `vllm serve`'s HTTP server (api_key, tool_call_parser, chat_template, ...).

    api_keys_file: as `ApiKeys.file`; the keys of vLLM's options hold too. Raises SkimError if it cannot be read.
    folder: the target's config and tokenizer; its weights are not read. root: the model's name in /v1/models, no path.
    keep_alive_s, reports, intake: as in `SkimMiddleware`.
    """
    flags = {"model": folder, "served_model_name": served_model_name, "max_model_len": max_model_len, **vllm_args}
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(_command_line(flags))
    client = PooledEngineClient(AsyncEngineArgs.from_cli_args(args).create_engine_config(), dispatcher, control_tokens)
    tasks = await client.get_supported_tasks()
    app = build_app(args, tasks, client.model_config)
    await init_app_state(client, app.state, args, tasks)
    for served in app.state.openai_serving_models.base_model_paths:
        served.model_path = root
    for kind in (AttributeError, LookupError, RecursionError, Exception):
        app.exception_handler(kind)(_answer_unexpected)
    app.state.server = types.SimpleNamespace()
    keys = ApiKeys(api_keys_file, filter(None, args.api_key or [envs.VLLM_API_KEY]))
    app.user_middleware = [one for one in app.user_middleware if one.cls is not AuthenticationMiddleware]
    if keys.wanted:
        app.user_middleware.insert(0, Middleware(KeyMiddleware, keys=keys))
    # Innermost: authentication runs first, and the app's own error responses pass through this middleware.
    app.user_middleware.append(
        Middleware(
            SkimMiddleware,
            defaults=dispatcher.defaults,
            decode_defaults=dispatcher.decode_defaults,
            tracer=tracer,
            model=served_model_name,
            deadline_s=deadline_s,
            limits=limits,
            keep_alive_s=keep_alive_s,
            reports=reports,
            admission=dispatcher.admission,
            intake=intake,
        )
    )
    app.middleware_stack = None  # vLLM's SageMaker setup has built the stack; Starlette builds it again with ours
    return app


def _command_line(flags: Mapping[str, Any]) -> list[str]:
    """{"max_model_len": 8, "enable_x": True} as ["--max-model-len", "8", "--enable-x"]."""
    words: list[str] = []
    for name, value in flags.items():
        if value is None or value is False:
            continue
        words.append("--" + name.replace("_", "-"))
        if value is not True:
            words += [str(v) for v in value] if isinstance(value, list) else [str(value)]
    return words


class PooledEngineClient(EngineClient):
    """An `EngineClient` whose engine is the two pools behind a `Dispatcher`."""

    def __init__(self, vllm_config: VllmConfig, dispatcher: Dispatcher, control_tokens: Handling = "text") -> None:
        self.vllm_config = vllm_config
        self.model_config = vllm_config.model_config
        self.renderer = renderer_from_config(vllm_config)
        self.input_processor = InputProcessor(vllm_config, self.renderer)
        self._dispatcher = dispatcher
        reuse_known_tokens(self.renderer)
        backend = getattr(self.renderer.get_tokenizer(), "backend_tokenizer", None)
        record_chats(self.renderer, ControlTokens(backend, control_tokens) if backend is not None else None)

    async def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, **kwargs: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        """Run one prompt through the pools. Raises vLLM's errors; the context keeps the error for the client."""
        context = CURRENT.get() or RequestContext(self._dispatcher.defaults, self._dispatcher.decode_defaults.decode)
        try:
            request = _read_prompt(prompt, sampling_params, context, kwargs)
            stream = self._dispatcher.run(request_id, request, context)
            try:
                async for output in stream:
                    yield _request_output(request_id, request, output)
            finally:
                await stream.aclose()
        except SkimError as error:
            raise _as_vllm_error(error, context) from None
        except Exception as error:
            logger.exception("request %s failed in the router", request_id)
            raise _as_vllm_error(error, context) from None

    async def get_supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    async def check_health(self) -> None:
        """Serve checks the pools; a router that answers is healthy."""

    @property
    def is_running(self) -> bool:
        return True

    is_stopped = errored = property(lambda self: False)
    dead_error = property(lambda self: RuntimeError("the router has no engine that could die"))

    async def is_tracing_enabled(self) -> bool:
        return False

    async def is_sleeping(self) -> bool:
        return False

    async def is_paused(self) -> bool:
        return False

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """Nothing to do: closing the generator of `generate` aborts the request in both pools."""

    async def do_log_stats(self) -> None:
        """Nothing to do: the engines log their own statistics."""

    def shutdown(self, timeout: float | None = None) -> None:
        """Nothing to do: the pools run on without the router."""

    def encode(self, *args: Any, **kwargs: Any) -> Any:
        raise _unsupported("pooling requests")

    async def notify_kv_transfer_request_rejected(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to do: the router has no KV connector and holds no blocks."""

    async def start_profile(self) -> None:
        raise _unsupported("profiling")

    async def stop_profile(self) -> None:
        raise _unsupported("profiling")

    async def reset_mm_cache(self) -> None:
        raise _unsupported("cache resets")

    async def reset_encoder_cache(self) -> None:
        raise _unsupported("cache resets")

    async def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        raise _unsupported("cache resets")

    async def sleep(self, level: int = 1, mode: str = "abort") -> None:
        raise _unsupported("sleep")

    async def wake_up(self, tags: list[str] | None = None) -> None:
        raise _unsupported("sleep")

    async def add_lora(self, lora_request: Any) -> bool:
        raise _unsupported("LoRA adapters")

    async def pause_generation(self, **kwargs: Any) -> None:
        raise _unsupported("pausing")

    async def resume_generation(self) -> None:
        raise _unsupported("pausing")


async def _answer_unexpected(request: Request, error: Exception) -> Response:
    """A 400 if vLLM failed to read the body, for example a tool without its function, or a message without a role.

    Other errors are as in vLLM's server, but a 500 shows nothing of the router's inside.
    """
    frames = traceback.walk_tb(error.__traceback__)
    if any(frame.f_code.co_name in _READ_BODIES for frame, _ in frames):
        problem = f"the body has a missing name, an empty list or a value of the wrong kind: {error}"
        shown = HttpError(400, "BadRequestError", problem)
    elif (response := await exception_handler(request, error)).status_code < 500:
        return response
    else:
        logger.error("a request failed in the router", exc_info=error)
        shown = HttpError.of(error)
    return JSONResponse(shown.body(), shown.status)


def _unsupported(what: str) -> Exception:
    return _as_vllm_error(InvalidRequestError(f"the router does not take {what}; ask the engines' own servers"), None)


def _as_vllm_error(error: Exception, context: RequestContext | None) -> Exception:
    """The vLLM exception with the right status. The context keeps the error: vLLM may have started the response."""
    shown = HttpError.of(error)
    if context is not None:
        context.error = shown
    if shown.status == HTTPStatus.BAD_REQUEST:
        return VLLMValidationError(shown.message, parameter=shown.param)
    return GracefulHTTPError(shown.message, HTTPStatus(shown.status))


def _read_prompt(prompt: Any, params: SamplingParams, context: RequestContext, kwargs: Mapping[str, Any]) -> Prompt:
    """vLLM's EngineInput and SamplingParams as the dispatcher's Prompt. Raises InvalidRequestError."""
    if not isinstance(prompt, Mapping) or not prompt.get("prompt_token_ids"):
        raise InvalidRequestError("this endpoint takes prompts of text or token ids only")
    if kwargs.get("lora_request") is not None:
        raise InvalidRequestError("LoRA adapters are not served here; ask for the base model")
    if reserved := reserved_names(params.extra_args or ()):
        raise InvalidRequestError(f"{reserved[0]} is reserved for the server; leave it out")
    priority = kwargs.get("priority") or 0
    if not FIRST_PRIORITY <= priority < 2**63:
        raise InvalidRequestError("the priority header must be an integer of 64 bits")
    if priority < context.min_priority:
        raise InvalidRequestError(f"priority must be at least {context.min_priority} with this API key")
    if context.keeps is not None:
        context.keeps.check(prompt.get("prompt") if prompt.get("prompt") in context.chats else None)
    if max(prompt["prompt_token_ids"]) >= 2**31:
        raise InvalidRequestError("prompt has a token id outside the vocabulary")
    return Prompt(
        token_ids=prompt["prompt_token_ids"],
        sampling=msgspec.to_builtins(params, builtin_types=(bytes,)),
        max_tokens=params.max_tokens or 0,
        prompt_logprobs=params.prompt_logprobs is not None,
        multimodal=prompt.get("type") != "token",
        chat=context.chats.get(prompt.get("prompt")),
        text=prompt.get("prompt"),
        offsets=prompt.get("prompt_token_offsets"),
        cache_salt=context.salt(prompt.get("cache_salt")),
        priority=priority,
        engine_args={name: kwargs[name] for name in _ENGINE_ARGS if kwargs.get(name) is not None},
    )


def _request_output(request_id: str, prompt: Prompt, output: GenerateOutput) -> RequestOutput:
    """A GenerateOutput in vLLM's form. It holds the client's whole prompt, so that usage counts all of its tokens."""
    return RequestOutput(
        request_id=request_id,
        prompt=prompt.text,
        prompt_token_ids=prompt.token_ids,
        prompt_logprobs=_position_logprobs(output.prompt_logprobs),
        outputs=[
            CompletionOutput(
                index=completion.index,
                text=completion.text,
                token_ids=completion.token_ids.tolist(),
                cumulative_logprob=completion.cumulative_logprob,
                logprobs=_position_logprobs(completion.logprobs),
                finish_reason=completion.finish_reason,
                stop_reason=completion.stop_reason,
            )
            for completion in output.completions
        ],
        finished=output.finished,
        num_cached_tokens=output.cached_tokens,
    )


def _position_logprobs(positions: list[Any] | None) -> list[Any] | None:
    """{token id: Logprob} for each position. vLLM takes the first entry as the sampled token."""
    if positions is None:
        return None
    return [None if candidates is None else dict(map(_logprob, candidates)) for candidates in positions]


def _logprob(candidate: TokenLogprob) -> tuple[int, Logprob]:
    return candidate.token_id, Logprob(candidate.logprob, candidate.rank, candidate.decoded)
