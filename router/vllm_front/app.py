"""vLLM's own HTTP app over an engine client that has no engine: every generation goes to the two pools."""

import argparse
import logging
import traceback
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI
from fastapi.dependencies.utils import request_body_to_args
from pydantic import ValidationError
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from vllm import envs
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.entrypoints.serve import create_error_response
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.entrypoints.serve.exception_handling.handlers.exception import exception_handler
from vllm.entrypoints.serve.middleware.authenticate import AuthenticationMiddleware
from vllm.entrypoints.serve.utils.api_utils import with_cancellation

from router.admission.api_keys import ApiKeys
from router.admission.intake_lock import IntakeLock
from router.dispatch.dispatcher import Dispatcher
from router.http.middleware import KeyMiddleware, SkimMiddleware
from router.options.errors import HttpError
from router.options.request import shown
from router.vllm_front import body_errors, flags, renderer
from router.vllm_front.engine_client import PooledEngineClient
from router.vllm_front.metrics import FrontMetrics
from router.vllm_front.select_endpoint import PATH as SELECT_PATH
from router.vllm_front.select_endpoint import SelectEndpoint
from skim_common.errors import SkimError, one_line
from skim_common.validation import sentence
from skim_common.versions import check_version

logger = logging.getLogger(__name__)

_READ_BODIES = {
    request_body_to_args.__name__, "parse_chat_messages", "parse_chat_messages_async", "construct_input_messages",
}  # fmt: skip
"""FastAPI's function that reads a body, and vLLM's that read the messages of a chat and the items of a response."""


@dataclass(frozen=True)
class ServedModel:
    """The target as clients see it. folder: its config and tokenizer. root: its name in /v1/models, no path. names: as
    clients send them; answers have the first. max_len: tokens of a prompt and its answer. options: of vLLM's front."""

    folder: str
    root: str
    names: tuple[str, ...]
    max_len: int
    options: Mapping[str, Any] = field(default_factory=dict)


async def build_openai_app(dispatcher: Dispatcher, model: ServedModel, intake: IntakeLock | None = None) -> FastAPI:
    """The HTTP app. intake: as in `SkimMiddleware`. Its `state.metrics` are its FrontMetrics.

    Raises SkimError for another version of vLLM, for options that vLLM refuses, and if the file of API keys cannot be
    read. The keys of vLLM's own options hold, too.
    """
    check_version("vllm")
    args, vllm_config = front_config(model)
    keys = ApiKeys(dispatcher.settings.api_keys_file, filter(None, args.api_key or [envs.VLLM_API_KEY]))
    try:
        front = FrontMetrics(vllm_config, model.names[0], dispatcher.admission)
        adapters = [adapter.name for adapter in args.lora_modules or ()]
        client = PooledEngineClient(vllm_config, dispatcher, adapters)
        app = await _vllm_app(args, client, front, model)
    except SkimError:
        raise
    except Exception as error:  # of any type: vLLM's own, and those of middlewares and plugins
        logger.exception("the HTTP app cannot be built")
        cause, given = f"{type(error).__name__}: {one_line(error)}", ", ".join(model.options) or "none"
        raise SkimError(f"the HTTP app cannot be built with the target.engine_options {given} ({cause})") from error
    app.state.metrics = dispatcher.clients = front
    for kind in (AttributeError, LookupError, RecursionError, Exception):
        app.exception_handler(kind)(_answer_unexpected)
    select = SelectEndpoint(dispatcher, app.state.online_renderer, app.state.openai_serving_models)
    app.post(SELECT_PATH)(with_cancellation(select.answer))
    body_errors.bound_body_errors(app)
    body_errors.bound_messages()
    app.state.server = types.SimpleNamespace()
    app.user_middleware = [one for one in app.user_middleware if one.cls is not AuthenticationMiddleware]
    if keys.wanted:
        app.user_middleware.insert(0, Middleware(KeyMiddleware, keys=keys))
    # Innermost: authentication runs first, and the app's own error responses pass through this middleware.
    app.user_middleware.append(Middleware(SkimMiddleware, dispatcher=dispatcher, model=model.names[0], intake=intake))
    app.middleware_stack = None  # vLLM's SageMaker setup has built the stack; Starlette builds it again with ours
    return app


async def _vllm_app(
    args: argparse.Namespace, client: PooledEngineClient, front: FrontMetrics, model: ServedModel
) -> FastAPI:
    """vLLM's app, which tells clients no path of this machine. Raises errors of any type."""
    tasks = await client.get_supported_tasks()
    app = build_app(args, tasks, client.model_config)
    front.count_requests_of(app)
    await init_app_state(client, app.state, args, tasks)
    flags.check_late_options(args, client, app.state.online_renderer)
    models: OpenAIServingModels = app.state.openai_serving_models
    for served in models.base_model_paths:
        served.model_path = model.root
    for adapter in models.lora_requests.values():
        adapter.lora_path = adapter.lora_name
    models.load_lora_adapter = models.unload_lora_adapter = _refuse_adapter
    return app


async def _refuse_adapter(request: object, base_model_name: str | None = None) -> ErrorResponse:
    """In place of the front's methods behind VLLM_ALLOW_RUNTIME_LORA_UPDATING: one router would know, and no target."""
    return create_error_response("the adapters are fixed while the endpoint runs: name them in lora_modules")


def _problem_of(error: Exception) -> str:
    """What is wrong with a body. The text of Python's own errors is about vLLM's code; others are vLLM's sentences."""
    if isinstance(error, KeyError) and error.args and isinstance(error.args[0], str):
        return f"the body lacks the name {shown(error.args[0])} in a message, an item, a tool or a part of them; add it"
    if isinstance(error, AttributeError) and isinstance(kind := getattr(error.obj, "type", None), str):
        return renderer.unsupported_item(kind)
    if isinstance(error, RecursionError):
        return "the body, or JSON in one of its texts, has too many levels of lists and objects; flatten it"
    if isinstance(error, LookupError | TypeError | AttributeError):
        return "a message, an item, a tool or a part of them has an empty list or a value of the wrong kind; correct it"
    return f"the body cannot be read: {error}"


def front_config(model: ServedModel) -> tuple[argparse.Namespace, VllmConfig]:
    """vLLM's arguments and configuration of the front, as `vllm serve` makes them. Raises SkimError."""
    options = {
        **model.options,
        "model": model.folder,
        "served_model_name": list(model.names),
        "max_model_len": model.max_len,
        "language_model_only": True,  # the pools get token ids, so vLLM shall refuse images, audio and video
    }
    args = flags.arguments(options)
    try:
        return args, AsyncEngineArgs.from_cli_args(args).create_engine_config()
    except Exception as error:  # pydantic, transformers and vLLM raise many types here
        logger.exception("vLLM's front refuses its options")
        cause = sentence(error) if isinstance(error, ValidationError) else one_line(error)
        raise SkimError(f"vLLM's front refuses an option of target.engine_options: {cause}") from error


async def _answer_unexpected(request: Request, error: Exception) -> Response:
    """A 400 if vLLM failed to read the body, such as a tool without its function. Other errors are as in vLLM's server,
    but a 500 shows nothing of the router's inside."""
    frames = traceback.walk_tb(error.__traceback__)
    if isinstance(error, RecursionError) or any(frame.f_code.co_name in _READ_BODIES for frame, _ in frames):
        return HttpError(400, "BadRequestError", _problem_of(error)).response(request.url.path)
    if (response := await exception_handler(request, error)).status_code < 500:
        return response
    logger.error("a request failed in the router", exc_info=error)
    return HttpError.of(error).response(request.url.path)
