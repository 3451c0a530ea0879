"""What a vLLM release's managers ask for at admission, as plain vLLM Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvconform.conformance.adapters.scripts_manager import named_arguments
from kvconform.conformance.adapters.vllm_admission import (
    MAKE,
    admission_arguments,
    cap,
    deployed,
    make_manager,
    manager_arguments,
    pool_values,
)

if TYPE_CHECKING:
    from kvconform.conformance.adapters.scripts import Writer

QUEUE = "SimpleNamespace(popleft_n=lambda count: [None] * count)"

Wire = dict[str, Any]


def write_admission(writer: Writer, spec: Wire, deployment: Wire, answer: Any) -> None:
    """Add to a script the lines that make a group's manager, and print what it asks for."""
    modules = writer.planner.modules
    given = deployed(deployment)
    made = writer.spec(spec)
    pool = _pool(writer, spec["block_size"])
    named = manager_arguments(modules, spec["block_size"], **given)
    make = f"{writer.function(MAKE)}(kv_cache_spec={made}, block_pool={pool}, {named_arguments(named)})"
    if isinstance(answer, Exception):
        # Managers are refused when they are made; what one asks for is a number.
        writer.lines += writer.attempt(make)
        return
    manager = make_manager(modules, writer.adapter.release.build(spec), **given)
    name = writer.fresh("manager")
    capped = cap(manager)
    asked = named_arguments(admission_arguments(manager, deployment["max_model_len"]))
    blocks = f"{name}.{capped}" if capped else f"{name}.get_num_blocks_to_allocate({asked})"
    writer.lines += [f"{name} = {make}", f"print({blocks})"]


def _pool(writer: Writer, block_size: int) -> str:
    """The name of a stand-in for a pool."""
    writer.imports.setdefault("types", set()).add("SimpleNamespace")
    values = named_arguments(pool_values(block_size))
    return writer.bound("pool", f"SimpleNamespace({values}, free_block_queue={QUEUE})")
