"""The hooks into vLLM that only the speculator has, with the private methods that it calls.

Here and not beside the code, which the front process does not import. The hooks of restored positions and block hashes
are in `vllm_hooks`.
"""

from skim_common.symbols import Hook

_SCHEDULER = "vllm.v1.core.sched.scheduler"
_MANAGER = "vllm.v1.core.kv_cache_manager"
_COORDINATOR = "vllm.v1.core.kv_cache_coordinator"
_WORKER = "vllm.v1.worker.gpu_worker"
_SAMPLING = "vllm.v1.sample.ops.topk_topp_sampler"

HOOKS = (
    Hook(
        what="queries of the tokens that score a prompt",
        how=(
            "vLLM: each attention layer's `impl.forward` is wrapped and copies rows into static buffers; `worker_cls`"
            " chooses them around `execute_model` and `sample_tokens`, and scores; the scheduler computes the"
            " question's tokens again, and steps that capture get no FULL CUDA graph"
        ),
        until="vLLM returns the queries of chosen tokens",
        where=(
            "speculator_service/vllm_backend/capture/query_capture.py",
            "speculator_service/vllm_backend/worker.py",
            "speculator_service/vllm_backend/scheduler/question_rows.py",
            "speculator_service/vllm_backend/full_graphs.py",
        ),
        symbols=(
            ("vllm.v1.attention.backend", "AttentionImpl.forward", "self layer query"),
            (_WORKER, "Worker.load_model", "self load_dummy_weights"),
            (_WORKER, "Worker.initialize_from_config", "self kv_cache_config"),
            (_WORKER, "Worker.execute_model", "self scheduler_output"),
            (_WORKER, "Worker.sample_tokens", "self grammar_output"),
            (_SCHEDULER, "Scheduler._get_local_prefix_cache_hit", "self request"),
            (_MANAGER, "KVCacheManager.create_kv_cache_blocks", "self blocks"),
            (
                _COORDINATOR,
                "HybridKVCacheCoordinator.find_longest_cache_hit",
                "self block_hashes max_cache_hit_length",
            ),
        ),
        v2=(
            (
                "vllm.v1.worker.gpu.cudagraph_utils",
                "CudaGraphManager.dispatch",
                "self num_reqs num_tokens uniform_token_count num_active_loras max_query_len",
            ),
        ),
    ),
    Hook(
        what="scores from the worker to the engine's outputs",
        how="vLLM: `scheduler_cls` puts them on the engine's outputs",
        until="vLLM's outputs carry data of a worker",
        where=("speculator_service/vllm_backend/scheduler/scheduler.py",),
        symbols=((_SCHEDULER, "Scheduler.update_from_output", "self scheduler_output model_runner_output"),),
    ),
    Hook(
        what="multi-step scheduling",
        how="vLLM: a scheduler mixin allocates their slots, the worker runs synthetic steps and merges their outputs",
        until="vLLM's scheduler runs several steps of a request in one",
        where=("speculator_service/vllm_backend/scheduler/multi_step.py",),
        symbols=(
            (_SCHEDULER, "Scheduler.schedule", "self"),
            (_SCHEDULER, "Scheduler._update_request_with_output", "self request new_token_ids is_stale"),
            (_MANAGER, "KVCacheManager.allocate_slots", "self request num_new_tokens"),
        ),
    ),
    Hook(
        what="gang scheduling and time slicing",
        how=(
            "vLLM: scheduler mixins delay drafting rounds until all that were sent together have arrived; prompts"
            " take turns with drafts"
        ),
        until=(
            "vLLM's scheduler waits for requests that belong together, and shares steps between a long prefill and"
            " decoding"
        ),
        where=(
            "speculator_service/vllm_backend/scheduler/gang.py",
            "speculator_service/vllm_backend/scheduler/time_slicing.py",
        ),
        symbols=(
            (_SCHEDULER, "Scheduler.add_request", "self request"),
            (_SCHEDULER, "Scheduler.schedule", "self"),
        ),
    ),
    Hook(
        what="drafts from exactly the `top_k` likeliest tokens",
        how=(
            "vLLM: the samplers' `apply_top_k_top_p` is replaced in their modules; on CPU also two functions that are"
            " compiled at their first call"
        ),
        until="vLLM's top-k breaks ties, and its CPU build compiles none of them while drafts wait",
        where=("speculator_service/vllm_backend/exact_top_k.py",),
        symbols=(
            (_SAMPLING, "apply_top_k_top_p", "logits k p"),
            (_SAMPLING, "compiled_random_sample", "logits"),
            ("vllm.v1.sample.sampler", "batched_count_greater_than", "x values"),
        ),
        v2=(("vllm.v1.worker.gpu.sample.sampler", "apply_top_k_top_p", "logits k p"),),
    ),
)
