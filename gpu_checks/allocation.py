"""Law device/allocates-what-was-computed: a plan's tensors on real memory, and the bytes they take."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median_low
from typing import NamedTuple

from kvconform.gpu_checks.memory import Memory
from kvconform.properties.law import ensure, ensure_equal
from kvconform.reference.arithmetic import total
from kvconform.reference.layout import SLAB, allocated_bytes
from kvconform.reference.planning import KVCacheConfig, StridedKVCacheTensor
from torch import Tensor

ATTEMPTS = 5
"""Measurements of which the middle one counts: the process itself takes a page now and then."""


def allocation_sizes(config: KVCacheConfig) -> dict[int, int]:
    """Bytes of each raw allocation of a configuration, numbered as `layout.Placement.allocation`."""
    sizes: dict[int, int] = {}
    for index, tensor in enumerate(config.kv_cache_tensors):
        in_slab = isinstance(tensor, StridedKVCacheTensor) or tensor.block_stride != 0
        number = SLAB if in_slab else index + 1
        sizes[number] = max(tensor.size, sizes.get(number, 0))
    return sizes


def allocate(config: KVCacheConfig, memory: Memory) -> dict[int, Tensor]:
    """Raw bytes for each allocation of a configuration."""
    return {number: memory.allocate(size) for number, size in allocation_sizes(config).items()}


def check_allocation(config: KVCacheConfig, memory: Memory) -> None:
    """Taking a configuration's memory takes what was planned, and freeing it gives all of it back.

    Allocated bytes are those of the plan; every counter of the device moves by them, up to the
    documented rounding, and after freeing stands where it stood.
    """
    sizes = list(allocation_sizes(config).values())
    ensure_equal(total(sizes), allocated_bytes(config), "bytes to allocate", "the plan's")
    attempts = [_measure(config, memory) for _ in range(ATTEMPTS)]
    _compare(memory, sizes, [attempt.taken for attempt in attempts])
    ensure(
        all(attempt.sized for attempt in attempts),
        f"{memory.device}: got tensors of other sizes than the plan's allocations",
    )
    for name in memory.taken():
        left = median_low(attempt.left[name] for attempt in attempts)
        ensure(left <= 0, f"{memory.device}: {left} bytes of {name} memory left after freeing, wanted 0")


class Attempt(NamedTuple):
    """What allocating added to each counter, what freeing left, and whether tensors had their sizes."""

    taken: dict[str, int]
    left: dict[str, int]
    sized: bool


def _measure(config: KVCacheConfig, memory: Memory) -> Attempt:
    """Allocate and free once. Keeps little: what is kept of a large plan would be met as a leak."""
    memory.release()
    before = memory.taken()
    tensors = allocate(config, memory)
    for raw in tensors.values():
        memory.touch(raw)
    held = memory.taken()
    sized = all(tensors[number].numel() == size for number, size in allocation_sizes(config).items())
    del raw, tensors
    memory.release()
    return Attempt(_difference(held, before), _difference(memory.taken(), before), sized)


def _difference(after: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    return {name: after[name] - before[name] for name in before}


def _compare(memory: Memory, sizes: Sequence[int], measured: Sequence[dict[str, int]]) -> None:
    for name, (least, most) in memory.expected(sizes).items():
        got = median_low(taken[name] for taken in measured)
        ensure(
            least <= got <= most,
            f"{memory.device}: {name} memory grew by {got} bytes for a plan of {total(sizes)}, wanted "
            f"{least} to {most} = each of {len(sizes)} allocations rounded as documented",
        )
