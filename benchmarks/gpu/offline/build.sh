#!/usr/bin/env bash
# Packs vLLM 0.29.0 (CUDA) and Ray 2.60.0 for a Hopper machine that has no package index. It must have Python 3.12, torch 2.11
# for CUDA 13, triton, transformers and what these need; vLLM's kernels use torch's stable ABI, and run with that torch.
# Left out: FlashAttention 2, FlashMLA, DeepGEMM, Blackwell kernels, FlashInfer, vLLM's Rust front; Ray's Java and RLlib.
# Usage: build.sh OUT [FOLDER ...]      writes OUT/1, OUT/2, ... of 38 MB each; use.sh unpacks them there.
# FOLDER: also packed, as models/NAME, such as a folder with the weights of a real model.
set -euo pipefail
out=${1:?folder to write}; shift
here=$(cd "$(dirname "$0")" && pwd); tmp=$(mktemp -d); site=$tmp/site
trap 'rm -rf "$tmp"' EXIT
python3 -m pip install -q --no-deps --no-compile --only-binary=:all: --python-version 3.12 --implementation cp \
  $(printf -- '--platform manylinux%s_x86_64 ' _2_28 _2_27 _2_24 _2_31 _2_34 _2_17 2014 1) \
  --target "$site" -r "$here/requirements.txt"
cd "$site"
rm -rf vllm/vllm_flash_attn/_vllm_fa2_C* vllm/_flashkda_C* vllm/_flashmla* vllm/third_party/{deep_gemm,fmha_sm100} \
  vllm/_qutlass_C* vllm/_moe_C* vllm/vllm-rs ray/jars ray/rllib ray/dashboard/client
cd - > /dev/null
mkdir "$site/models"
for folder in "$@"; do cp -rL "$folder" "$site/models/"; done
mkdir -p "$out"
tar cf - -C "$site" . | xz -3 -T0 | split -b 38000000 -d -a 3 - "$tmp/part."
number=0
for part in "$tmp"/part.*; do number=$((number + 1)); mkdir -p "$out/$number"; mv "$part" "$out/$number/"; done
du -sh "$out"/*
