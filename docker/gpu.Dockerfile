# syntax=docker/dockerfile:1
# Skim on NVIDIA GPUs: docker build -f docker/gpu.Dockerfile -t skim:gpu .
# The CUDA libraries come with the wheels of requirements/gpu.lock; the host provides only the driver.
FROM python:3.11-slim-bookworm AS build

WORKDIR /opt/skim
COPY requirements/gpu.lock requirements/gpu.lock
RUN --mount=type=cache,target=/root/.cache/pip python3 -m venv --without-pip .venv \
    && python3 -m pip --python .venv/bin/python install --no-deps --only-binary :all: \
        --requirement requirements/gpu.lock
COPY pyproject.toml README.md LICENSE ./
COPY actors/ actors/
COPY benchmarks/ benchmarks/
COPY cluster/ cluster/
COPY demo_models/ demo_models/
COPY evals/ evals/
COPY kv_transfer/ kv_transfer/
COPY router/ router/
COPY skim/ skim/
COPY skim_common/ skim_common/
COPY speculator_service/ speculator_service/
COPY target_service/ target_service/
COPY vllm_hooks/ vllm_hooks/
RUN python3 -m pip --python .venv/bin/python install --no-cache-dir --no-deps --no-build-isolation --editable .

FROM python:3.11-slim-bookworm

# gcc, g++: Triton and Inductor compile launchers and host code when a kernel is first used. libibverbs1,
# ibverbs-providers, librdmacm1: UCX reads KV blocks of a split target over RDMA with them. The packages are not pinned:
# Debian keeps one version per release, so a pin would break later.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ gcc ibverbs-providers libc6-dev libibverbs1 libnuma1 \
        librdmacm1 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --create-home skim

COPY --from=build /opt/skim /opt/skim
COPY examples/ /opt/skim/examples/
ENV PATH=/opt/skim/.venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    DO_NOT_TRACK=1 \
    RAY_USAGE_STATS_ENABLED=0 \
    VLLM_NO_USAGE_STATS=1 \
    VLLM_USE_FLASHINFER_SAMPLER=0
USER 1000
WORKDIR /home/skim
EXPOSE 8000
CMD ["skim", "--help"]
