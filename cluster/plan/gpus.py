"""What a machine does in a second: GPUs by their makers' data sheets, and the share of it that engines reach.

The efficiencies are fitted to the engine-alone times of benchmarks/results/gpu-ttft.json: one H200, vLLM 0.29.0 without
CUDA graphs, shapes of Llama 3.1 8B and Llama 3.2 1B (`benchmarks.report.planned`). They are
assumed for the other GPUs. The numbers marked "assumed" were never measured.
"""

from dataclasses import dataclass, replace

from skim_common.errors import SkimError

GIB = 2**30
WORKING_GIB = 4.0
"""Working memory per model: CUDA's context and graphs, activations and logits of a step. An estimate, not measured."""
USABLE = 0.94
"""Share of a GPU's memory that may be used."""

LINEAR, ATTENTION = 0.74, 0.63
"""Shares of the peak that a prefill reaches in its matrix products and in its attention. Measured, see above."""
TOKEN_S = 3.6e-6
"""Seconds of the host for each token that an engine reads. Measured, see above."""
BANDWIDTH = 0.8
"""Share of the memory bandwidth, and of the link's, that an engine reaches. Assumed."""
STEP_S, REDUCE_S = 2e-3, 10e-6
"""Seconds of an engine step besides the GPU's work, and of an all-reduce without data. Assumed."""
SKIM_S = 0.036
"""Seconds of a speculative request besides both engines: the median of queue and selection in gpu-ttft.json. Router and
HTTP are not in it; on CPU the whole path takes 39 ms."""
EXCHANGE_S = 1e-3
"""Seconds of an exchange of drafts between target and speculator, without drafting. Assumed."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """flops: dense bfloat16 operations per second. bandwidth: of the memory, bytes per second. memory: bytes.

    link: bytes per second that one GPU sends to the others of its machine. measured: whether Skim was measured on it.
    """

    name: str
    flops: float
    bandwidth: float
    memory: float
    link: float
    measured: bool = False


# NVIDIA's data sheets. The peaks there are with sparsity, which doubles them. L40S: PCIe 4.0 x16; the others: NVLink.
GPUS = {
    "a100": Gpu("A100 SXM 80 GB", 312e12, 2.039e12, 80e9, 300e9),
    "l40s": Gpu("L40S 48 GB", 362e12, 0.864e12, 48e9, 32e9),
    "h100": Gpu("H100 SXM 80 GB", 989e12, 3.35e12, 80e9, 450e9),
    "h200": Gpu("H200 SXM 141 GB", 989e12, 4.8e12, 141e9, 450e9, measured=True),
    "b200": Gpu("B200 180 GB", 2250e12, 7.7e12, 180e9, 900e9),
}


def gpu_named(name: str) -> Gpu:
    """The GPU of this name. Raises SkimError if the table does not have it."""
    if name.lower() not in GPUS:
        raise SkimError(f"--gpu {name}: the plan knows {', '.join(GPUS)}")
    return GPUS[name.lower()]


@dataclass(frozen=True, slots=True)
class Machine:
    """What one rank of an engine reaches. linear, attention: operations per second. bandwidth, link: bytes per second.

    token_s, step_s, reduce_s: seconds per token that is read, per engine step, and per all-reduce without data. skim_s:
    seconds of a speculative request besides both engines. exchange_s: of an exchange of drafts.
    """

    linear: float
    attention: float
    bandwidth: float
    link: float = float("inf")
    token_s: float = 0.0
    step_s: float = 0.0
    reduce_s: float = 0.0
    skim_s: float = 0.0
    exchange_s: float = 0.0

    @classmethod
    def of(cls, gpu: Gpu) -> "Machine":
        """A GPU with the efficiencies above."""
        return cls(
            LINEAR * gpu.flops, ATTENTION * gpu.flops, BANDWIDTH * gpu.bandwidth, BANDWIDTH * gpu.link,
            TOKEN_S, STEP_S, REDUCE_S, SKIM_S, EXCHANGE_S,
        )  # fmt: skip

    def with_cores(self, share: float) -> "Machine":
        """A share of a CPU's cores, which compute that share. They reach the bandwidth of the whole machine."""
        return replace(self, linear=share * self.linear, attention=share * self.attention)
