# Source on the GPU machine: `. use.sh FOLDER`, with the folders 1, 2, ... of build.sh in FOLDER. It unpacks them once, and sets
# PYTHONPATH and what vLLM needs there. MODELS is the folder of the models that were packed.
bundle=${1:?folder with 1 2 3 ...}; site=${TMPDIR:-/tmp}/skim-site
if [ ! -e "$site.done" ]; then
  rm -rf "$site"; mkdir -p "$site"
  cat $(ls "$bundle"/*/part.* | sort -t. -k2) | xz -d -T0 | tar x -C "$site" && touch "$site.done"
fi
export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH} PATH=$site/bin:$PATH MODELS=$site/models
# FlashInfer is not packed, and vLLM's default sampler would import it; TF32 would break comparisons in float32.
export VLLM_USE_FLASHINFER_SAMPLER=0 TRITON_F32_DEFAULT=ieee HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 RAY_USAGE_STATS_ENABLED=0
