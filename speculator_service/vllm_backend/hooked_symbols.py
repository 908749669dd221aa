"""The vLLM symbols that only the speculator wraps, overrides, patches or calls, for `skim_common.symbols`.

Private methods that it calls are included. The symbols of restored positions, block hashes and partial blocks are in
`vllm_hooks`.
"""

_SCHEDULER = "vllm.v1.core.sched.scheduler"
_MANAGER = "vllm.v1.core.kv_cache_manager"
_COORDINATOR = "vllm.v1.core.kv_cache_coordinator"
_WORKER = "vllm.v1.worker.gpu_worker"
_SAMPLING = "vllm.v1.sample.ops.topk_topp_sampler"

HOOKED = (
    # query_capture
    ("vllm.v1.attention.backend", "AttentionImpl.forward", "self layer query"),
    # worker
    (_WORKER, "Worker.load_model", "self load_dummy_weights"),
    (_WORKER, "Worker.initialize_from_config", "self kv_cache_config"),
    (_WORKER, "Worker.execute_model", "self scheduler_output"),
    (_WORKER, "Worker.sample_tokens", "self grammar_output"),
    # scheduler
    (_SCHEDULER, "Scheduler.add_request", "self request"),
    (_SCHEDULER, "Scheduler.schedule", "self"),
    (_SCHEDULER, "Scheduler.update_from_output", "self scheduler_output model_runner_output"),
    (_SCHEDULER, "Scheduler._update_request_with_output", "self request new_token_ids is_stale"),
    (_SCHEDULER, "Scheduler._get_local_prefix_cache_hit", "self request"),
    (_MANAGER, "KVCacheManager.allocate_slots", "self request num_new_tokens"),
    (_MANAGER, "KVCacheManager.create_kv_cache_blocks", "self blocks"),
    (_COORDINATOR, "HybridKVCacheCoordinator.find_longest_cache_hit", "self block_hashes max_cache_hit_length"),
    # exact_top_k
    (_SAMPLING, "apply_top_k_top_p", "logits k p"),
    (_SAMPLING, "compiled_random_sample", "logits"),
    ("vllm.v1.sample.sampler", "batched_count_greater_than", "x values"),
)
HOOKED_V2 = (
    ("vllm.v1.worker.gpu.sample.sampler", "apply_top_k_top_p", "logits k p"),
    # full_graphs
    (
        "vllm.v1.worker.gpu.cudagraph_utils",
        "CudaGraphManager.dispatch",
        "self num_reqs num_tokens uniform_token_count num_active_loras max_query_len",
    ),
)
"""The V2 model runner has a sampler and CUDA graphs of its own."""
