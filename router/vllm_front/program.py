"""A program that answers questions about options of `vllm serve`, before Ray or an engine starts.

The command line of Skim runs it as a process of its own: the import of vLLM changes the environment, which Ray's
processes would inherit, and takes seconds and 0.6 GB. So one process answers all questions of a command.
"""

import asyncio
import gc
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, cast

from skim_common.errors import SkimError


def read_flags(lines: Sequence[Sequence[str]], own: Sequence[str]) -> list[tuple[dict[str, Any], list[str]]]:
    """As `given_flags`. lines: each the words of a command line."""
    from router.vllm_front.flags import given_flags

    return [given_flags(words, own) for words in lines]


def check_front(
    *,
    model: str,
    root: str,
    names: Sequence[str],
    front_options: Mapping[str, Any],
    engine_options: Mapping[str, Any],
    settings: Mapping[str, Any],
    pools: Mapping[str, Mapping[str, Any]],
    python_path: str,
    is_here: bool = True,
) -> None:
    """Build a router's app over no pools, and read what the target would read. Raises SkimError for what is refused.

    model: folder or hub name. root, names, front_options: as in ServedModel. engine_options: the target's. pools:
    options of `vllm serve`, by pool. python_path: the target's PYTHONPATH. is_here: the model is on this machine; else
    the options alone are checked.
    """
    from router.vllm_front.flags import arguments, check_logits_processors

    sys.path.extend(filter(None, python_path.split(os.pathsep)))
    for pool, options in pools.items():
        try:
            arguments(options)
        except SkimError as error:
            raise SkimError(f"{pool}.engine_options: {error}") from None
    if not is_here:
        return
    from actors.observability.metrics import ProcessMeter
    from router.dispatch.dispatcher import Dispatcher
    from router.options.request import PrefillOptions, SpeculationOptions
    from router.options.settings import RouterConfig
    from router.vllm_front.app import ServedModel, build_openai_app
    from skim_common.models.info import inspect_model
    from skim_common.models.source import local_folder
    from vllm_hooks.adapters import adapters_of, lora_options

    lora_options(adapters_of(engine_options.get("lora_modules") or (), names, weights=False), engine_options)
    check_logits_processors(front_options.get("logits_processors") or ())
    limit, overrides = engine_options.get("max_model_len"), engine_options.get("hf_overrides")
    info = inspect_model(model, engine="vllm", max_model_len=limit, overrides=overrides)
    folder = local_folder(model, weights=False)
    served = ServedModel(folder, root, tuple(names), info.max_model_len, front_options)
    config, no_pools = RouterConfig.model_validate(settings), cast(Any, None)
    dispatcher = Dispatcher(no_pools, PrefillOptions(), SpeculationOptions(), config, ProcessMeter())
    asyncio.run(build_openai_app(dispatcher, served))


QUESTIONS: Mapping[str, Callable[..., Any]] = {"read_flags": read_flags, "check_front": check_front}


def main() -> None:
    """Each line of stdin is a question: JSON with `question`, a name of QUESTIONS, its arguments, and `folder`, the
    working directory. Each line of stdout is the answer as JSON: `answer`, or `error`, a sentence."""
    gc.disable()  # collections take a third of vLLM's import
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # plugins may print
    import_module("router.vllm_front.flags")  # before the first question, while the caller does other work
    for line in sys.stdin:
        arguments = json.loads(line)
        os.chdir(arguments.pop("folder"))
        try:
            answer: dict[str, Any] = {"answer": QUESTIONS[arguments.pop("question")](**arguments)}
        except SkimError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
