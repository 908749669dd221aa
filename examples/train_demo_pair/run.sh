#!/bin/bash
# Make the demo pair from nothing: train both models, export them, measure them. About twenty minutes on two quiet cores,
# the measuring apart. Usage: ./run.sh [FOLDER]   (default: ./pair; the shipped pair is ../../demo_models)
set -euo pipefail
cd "$(dirname "$0")"
out=$(realpath -m "${1:-pair}")
python=${PYTHON:-python}
export PYTHONPATH=${PYTHONPATH:-$(realpath ../..)} OMP_NUM_THREADS=1
mkdir -p "$out"

$python train.py "$out/speculator.pt" --shape speculator --seed 0 --rate 5e-4 \
  --stages 256:16:30:8,1024:4:80:24,2048:2:120:40,4096:1:80:64,8192:1:8:64
$python train.py "$out/target.pt" --shape target --seed 1 --rate 2e-4 \
  --stages 256:16:20:8,1024:4:60:24,2048:2:80:40,4096:1:50:64,8192:1:4:64
$python export.py "$out/speculator.pt" "$out/speculator"
$python export.py "$out/target.pt" "$out/target"
$python evaluate.py "$out/speculator" "$out/target" --samples 200 --json "$out/evaluation.json"
