# syntax=docker/dockerfile:1
# Skim without GPUs, with the demo models: docker build -f docker/cpu.Dockerfile -t skim:cpu .
# KubeRay's init containers, autoscaler and batch jobs use this image too: they need only bash, ray and python.
FROM python:3.11-slim-bookworm AS build

WORKDIR /opt/skim
COPY requirements/ requirements/
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
RUN --mount=type=cache,target=/root/.cache/pip requirements/install.sh python3 .venv

FROM python:3.11-slim-bookworm

# libnuma: for vLLM's CPU kernels. It is not pinned: Debian keeps one version per release, so a pin would break later.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libnuma1 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --create-home skim

COPY --from=build /opt/skim /opt/skim
COPY demo_models/ /models/
COPY examples/ /opt/skim/examples/
ENV PATH=/opt/skim/.venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    DO_NOT_TRACK=1 \
    RAY_USAGE_STATS_ENABLED=0 \
    VLLM_NO_USAGE_STATS=1
USER 1000
WORKDIR /home/skim
EXPOSE 8000
CMD ["skim", "serve", "--target", "/models/target", "--speculator", "/models/speculator", "--host", "0.0.0.0"]
