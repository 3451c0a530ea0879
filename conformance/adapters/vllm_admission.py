"""The block manager of one group of a vLLM release, and what it asks for when it admits a request.

Beside `vllm_planner.py`, and like it. The pool is a stand-in: a group's manager takes nothing of it
until it is driven, but for sinks.
"""

from __future__ import annotations

from typing import Any

from kvconform.conformance.adapters.vllm import Settings
from kvconform.conformance.adapters.vllm_modules import MANAGERS, UTILITIES, PlanningModules, taken
from kvconform.conformance.adapters.vllm_outcomes import Unsupported

MAKE = "get_manager_for_kv_cache_spec"

CAPS = ("max_admission_blocks_per_request", "_max_admission_blocks_per_request")
"""Where releases keep the most blocks that a manager lets one request ask for."""

Wire = dict[str, Any]


def make_manager(modules: PlanningModules, spec: Any, **wanted: Any) -> Any:
    """The manager of a group's spec, made with what the release's coordinator gives every one."""
    modules.registry()
    modules.load(UTILITIES)
    pool = pool_values(spec.block_size)
    queue = {"popleft_n": lambda count: [None] * count}
    named = manager_arguments(modules, spec.block_size, **wanted)
    return modules.call(
        modules.function(MAKE),
        kv_cache_spec=spec,
        block_pool=Settings("block_pool", {**pool, "free_block_queue": queue}),
        **named,
    )


def pool_values(block_size: int) -> Wire:
    """What a manager reads of its pool when it is made, but for the queue of free blocks."""
    return {
        "null_block": None,
        "num_gpu_blocks": 1,
        "hash_block_size": block_size,
        "num_hash_lookahead_tokens": 0,
    }


def manager_arguments(modules: PlanningModules, block_size: int, **wanted: Any) -> Wire:
    """What a manager is given besides its spec and pool, by name, as far as the release takes it."""
    given = {
        "max_model_len": block_size,
        "max_num_batched_tokens": 1,
        "max_in_flight_tokens": 1,
        "enable_caching": False,
        "kv_cache_group_id": 0,
        "scheduler_block_size": block_size,
        "dcp_world_size": 1,
        "pcp_world_size": 1,
        "needs_kv_cache_zeroing": False,
        **wanted,
    }
    base = modules.load(MANAGERS).SingleTypeKVCacheManager
    return taken(given, modules.function(MAKE), base.__init__)


def deployed(deployment: Wire) -> Wire:
    """What of a deployment a manager is given.

    Its lookahead is left out as at startup: bound/lookahead-counts asks for it.
    """
    return {
        "max_model_len": deployment["max_model_len"],
        "max_num_batched_tokens": deployment["max_num_batched_tokens"],
        "max_in_flight_tokens": deployment["in_flight_tokens"],
        "dcp_world_size": deployment["decode_context_parallel"],
    }


def cap(manager: Any) -> str | None:
    """The name of the manager's cap; None where it has none. Raises `Unsupported` where it is not said."""
    for name in CAPS:
        if hasattr(manager, name):
            return name if getattr(manager, name) is not None else None
    raise Unsupported(f"{type(manager).__name__}.{CAPS[0]}")


def admission_arguments(manager: Any, length: int) -> Wire:
    """By what a manager without a cap is asked for every block of a whole request at once."""
    asked = {
        "request_id": "request",
        "num_tokens": length,
        "num_tokens_main_model": length,
        "new_computed_blocks": (),
        "total_computed_tokens": 0,
        "num_local_computed_tokens": 0,
        "apply_admission_cap": True,
    }
    return taken(asked, type(manager).get_num_blocks_to_allocate)


def admission_blocks(modules: PlanningModules, manager: Any, length: int) -> int:
    """Blocks that the manager asks for before it takes in a request of so many tokens."""
    name = cap(manager)
    blocks: int
    if name is not None:
        blocks = getattr(manager, name)
    else:
        asked = admission_arguments(manager, length)
        blocks = modules.call(manager.get_num_blocks_to_allocate, **asked)
    return blocks
