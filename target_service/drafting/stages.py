"""Which drafting methods work on a target whose layers are divided over pipeline stages."""

from skim_common.errors import SkimError

WITH_STAGES = ("none", "eagle", "mtp")
"""Methods that vLLM 0.29 runs in its V2 model runner, which supports pipeline stages. By reading, except none."""


def check_stages(method: str, stages: int) -> None:
    """Raise SkimError if drafting by `method` (of DecodeOptions) does not work with this number of pipeline stages.

    The other methods run in the V1 model runner. Its earlier stages stop at their first step, because
    GPUModelRunner._build_attention_metadata reads `drafter`, which only the last stage has (run with ngram on CPU).
    """
    if stages > 1 and method not in WITH_STAGES:
        raise SkimError(
            f"decode.method {method} does not work with pipeline_parallel {stages}: with pipeline stages vLLM drafts"
            f" only by {' or '.join(WITH_STAGES[1:])}; set decode.method to none, or tensor_parallel to all ranks"
        )
