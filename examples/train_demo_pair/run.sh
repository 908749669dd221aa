#!/bin/bash
# Make the demo pair: train both models, export and evaluate them. Takes a few minutes on one quiet core, and an hour for
# the evaluation. Usage: [SEED=0] [PYTHON=python] ./run.sh [FOLDER]   (FOLDER: ./pair; SEED 0 made the shipped pair)
set -euo pipefail
cd "$(dirname "$0")"
out=$(realpath -m "${1:-pair}")
python=${PYTHON:-python}
export PYTHONPATH=${PYTHONPATH:-$(realpath ../..)} OMP_NUM_THREADS=1
mkdir -p "$out"

$python train.py "$out/speculator.pt" --shape speculator --seed "${SEED:-0}" --rate 5e-4 --circuit-share 0.1 \
  --stages 256:16:30:8,1024:4:60:24,2048:2:40:40,4096:1:25:64
$python train.py "$out/target.pt" --shape target --seed "$((${SEED:-0} + 1))" --rate 2e-4 --circuit-share 0.03 \
  --stages 256:16:20:8,1024:4:40:24,2048:2:20:40,4096:1:12:64
$python export.py "$out/speculator.pt" "$out/speculator"
$python export.py "$out/target.pt" "$out/target"
$python evaluate.py "$out/speculator" "$out/target" --samples 200 --json "$out/evaluation.json"
