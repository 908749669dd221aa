"""The fields of vLLM's sampling parameters (vllm.sampling_params) that a mock target reads."""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from kv_transfer.messages import CUMULATIVE, DELTA, FINAL_ONLY
from skim_common.errors import InvalidRequestError


class Sampling(msgspec.Struct, frozen=True):
    """Parameters of one request. Defaults are vLLM's, except for output_kind, which is DELTA (new tokens only)."""

    n: Annotated[int, msgspec.Meta(ge=1, le=128)] = 1
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] = 1.0
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    seed: int | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = 16
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    skip_special_tokens: bool = True
    logprobs: Annotated[int, msgspec.Meta(ge=0)] | None = None
    prompt_logprobs: Annotated[int, msgspec.Meta(ge=0)] | None = None
    output_kind: Annotated[int, msgspec.Meta(ge=CUMULATIVE, le=FINAL_ONLY)] = DELTA
    stream_interval: Annotated[int, msgspec.Meta(ge=1)] | None = None

    @property
    def stop_strings(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []


def read_sampling(fields: Mapping[str, Any]) -> Sampling:
    """Read `GenerateRequest.sampling`; fields that Sampling does not have are left out.

    Raises InvalidRequestError that names the field.
    """
    known = set(Sampling.__struct_fields__)
    try:
        return msgspec.convert({k: v for k, v in fields.items() if k in known}, Sampling)
    except msgspec.ValidationError as e:
        raise InvalidRequestError(f"sampling parameters: {e}") from e
