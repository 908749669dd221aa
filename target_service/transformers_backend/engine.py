"""The target on transformers, for machines without vLLM and as a second implementation in tests. One step at a time."""

import asyncio
import time
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor

from kv_transfer.messages import GenerateOutput, GenerateRequest
from skim_common.errors import EngineUnavailableError, ModelError
from skim_common.models.info import inspect_model
from skim_common.models.source import local_folder
from target_service.answer import Answers
from target_service.engine import TargetEngine
from target_service.limits import check_request
from target_service.sampling import read_sampling
from target_service.transformers_backend.decoding import Decoding


class TransformersTarget(TargetEngine):
    """TargetEngine over AutoModelForCausalLM with a KV cache and explicit position ids.

    device: a torch device. dtype: as in from_pretrained; "auto" is the checkpoint's dtype.
    Raises ModelError for a folder that cannot be used.
    """

    def __init__(
        self, model: str, *, device: str = "cpu", dtype: str = "auto", max_model_len: int | None = None
    ) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.info = inspect_model(model, engine="transformers", max_model_len=max_model_len)
        folder = local_folder(model, weights=True)
        try:
            loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
        except Exception as e:  # safetensors, torch and transformers each raise their own kinds
            raise ModelError(f"model {model}: its weights cannot be loaded ({e})") from e
        self._model = loaded.to(device).eval()
        self._tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        eos = self._model.generation_config.eos_token_id
        self._eos_token_ids = set(eos if isinstance(eos, list) else [eos]) - {None}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="target-transformers")
        self._closed = False

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateOutput, None]:
        """As TargetEngine.generate. Sampling fields that it does not support are errors that name the field."""
        max_tokens = check_request(request, self.info)
        sampling = read_sampling(request.sampling, refuse_others=True, engine="transformers")
        await self.check_health()
        decoding = Decoding(self._model, self._tokenizer, request.prompt, sampling)
        _, answered = request.prompt_and_answer()
        answers = Answers(sampling, max_tokens, self._tokenizer, self._eos_token_ids, answered.tolist())
        queued = time.perf_counter()
        while not answers.finished:
            # A closed or cancelled request ends here and runs no further step.
            step = await asyncio.get_running_loop().run_in_executor(self._thread, decoding.step)
            if not answers.begun:
                prefill = {"queue": decoding.began - queued, "prefill": time.perf_counter() - decoding.began}
                answers.on_first_output = {
                    "timings": {part: 1e3 * seconds for part, seconds in prefill.items()},
                    "prompt_logprobs": decoding.prompt_logprobs,
                }
            answers.add(step)
            output = answers.output()
            if output is not None:
                yield output

    async def check_health(self) -> None:
        if self._closed:
            raise EngineUnavailableError("the target engine was closed")

    def close(self) -> None:
        self._closed = True
        self._thread.shutdown(cancel_futures=True)
        self._model = None
