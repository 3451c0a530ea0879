"""The memory of a device: raw bytes taken from it, and what its own counters say was taken."""

from __future__ import annotations

import contextlib
import mmap
import os
import re
from collections.abc import Sequence
from pathlib import Path

import torch
from kvconform.reference.arithmetic import round_up, total
from torch import Tensor

_MEBIBYTE = 1 << 20


class Memory:
    """Raw allocations on one device.

    ``rounding``: bytes that a single allocation is rounded up to. ``describe`` says so in words.
    """

    device: torch.device
    rounding: int

    def describe(self) -> str:
        """Allocator and rounding, in one line."""
        raise NotImplementedError

    def allocate(self, size: int) -> Tensor:
        """``size`` raw bytes as uint8; their contents are anything."""
        raise NotImplementedError

    def touch(self, raw: Tensor) -> None:
        """Make the device really hold the bytes, where it waits for a first write."""
        raise NotImplementedError

    def taken(self) -> dict[str, int]:
        """Bytes in use now by each counter that the device keeps."""
        raise NotImplementedError

    def expected(self, sizes: Sequence[int]) -> dict[str, tuple[int, int]]:
        """Least and most that allocations of these sizes may add to each counter."""
        raise NotImplementedError

    def release(self) -> None:
        """Give back what freed allocations still hold."""
        raise NotImplementedError

    def available(self) -> int:
        """Bytes that may be taken now."""
        raise NotImplementedError


class HostMemory(Memory):
    """Anonymous mappings of the host: the kernel rounds each to whole pages, and holds a page once touched.

    A mapping of its own for each allocation, because malloc may keep what is freed for itself.
    Huge pages are asked not to be used, or one touch would make 2 MiB resident.
    """

    device = torch.device("cpu")
    rounding = mmap.PAGESIZE

    def describe(self) -> str:
        return f"anonymous mappings, rounded up to pages of {self.rounding} bytes, counted as resident memory"

    def allocate(self, size: int) -> Tensor:
        mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            mapping.madvise(mmap.MADV_NOHUGEPAGE)
        return torch.frombuffer(mapping, dtype=torch.uint8)

    def touch(self, raw: Tensor) -> None:
        raw[:: self.rounding] = 1

    def taken(self) -> dict[str, int]:
        return {"resident": resident_bytes()}

    def expected(self, sizes: Sequence[int]) -> dict[str, tuple[int, int]]:
        held = total(round_up(size, self.rounding) for size in sizes)
        return {"resident": (held, held)}

    def release(self) -> None:
        pass

    def available(self) -> int:
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(encoding="ascii"))
        return int(found.group(1)) * 1024 if found else 0


def resident_bytes() -> int:
    """Anonymous memory of this process, in memory or swapped out.

    Exact where the kernel walks the page tables for it; elsewhere all resident memory, which pages
    of mapped files, read in or dropped meanwhile, blur.
    """
    with contextlib.suppress(OSError):
        text = Path("/proc/self/smaps_rollup").read_text(encoding="ascii")
        held = re.findall(r"^(?:Anonymous|Swap):\s+(\d+) kB", text, re.MULTILINE)
        if held:
            return total(int(kibibytes) * 1024 for kibibytes in held)
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * mmap.PAGESIZE


SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING")
"""Variables under which torch's allocator rounds otherwise than is documented for it as it comes."""


class CudaMemory(Memory):
    """torch's caching allocator over the driver.

    Documented rounding (torch.cuda, "Memory management", and the allocator's source): a block is a
    multiple of 512 bytes. Segments, which the driver is asked for, are 2 MiB for blocks up to 1 MiB,
    20 MiB for blocks under 10 MiB, else the block rounded up to 2 MiB. What a block over 1 MiB
    leaves of its segment is kept with it, unless it is more than 1 MiB. The driver may round a
    segment up to 2 MiB again; its counter is of all processes.

    Raises ValueError where the allocator is not that one, or is set to round otherwise.
    """

    rounding = 512
    _SMALL = _MEBIBYTE
    _SMALL_SEGMENT = 2 * _MEBIBYTE
    _LARGE = 10 * _MEBIBYTE
    _LARGE_SEGMENT = 20 * _MEBIBYTE

    def __init__(self, device: torch.device) -> None:
        for name in SETTINGS:
            if os.environ.get(name):
                raise ValueError(f"{name} changes how torch's allocator rounds: unset it for the checks")
        backend = torch.cuda.memory.get_allocator_backend()
        if backend != "native":
            raise ValueError(f"the rounding of torch's allocator {backend} is not documented")
        self.device = torch.device(
            "cuda", device.index if device.index is not None else torch.cuda.current_device()
        )

    def describe(self) -> str:
        name = torch.cuda.get_device_name(self.device)
        platform = f"HIP {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
        return (
            f"{name}, {platform}, torch's caching allocator, blocks rounded up to {self.rounding} bytes, "
            "segments to 2 MiB (20 MiB for blocks of 1 to 10 MiB)"
        )

    def allocate(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8, device=self.device)

    def touch(self, raw: Tensor) -> None:
        raw[:: self.rounding] = 1
        torch.cuda.synchronize(self.device)

    def taken(self) -> dict[str, int]:
        torch.cuda.synchronize(self.device)
        counters = torch.cuda.memory_stats(self.device)
        free, whole = torch.cuda.mem_get_info(self.device)
        return {
            "requested": counters["requested_bytes.all.current"],
            "allocated": counters["allocated_bytes.all.current"],
            "reserved": counters["reserved_bytes.all.current"],
            "driver": whole - free,
        }

    def expected(self, sizes: Sequence[int]) -> dict[str, tuple[int, int]]:
        requested = total(sizes)
        blocks = [round_up(size, self.rounding) for size in sizes]
        large = [block for block in blocks if block > self._SMALL]
        segments = total(self._segment(block) for block in blocks)
        # Small blocks may find room in a segment that something else still holds.
        least = total(large)
        slack = 2 * _MEBIBYTE * len(sizes)
        return {
            "requested": (requested, requested),
            "allocated": (total(blocks), total(blocks) + self._SMALL * len(large)),
            "reserved": (least, segments),
            "driver": (least, segments + slack),
        }

    def _segment(self, block: int) -> int:
        if block <= self._SMALL:
            return self._SMALL_SEGMENT
        if block < self._LARGE:
            return self._LARGE_SEGMENT
        return round_up(block, 2 * _MEBIBYTE)

    def release(self) -> None:
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()

    def available(self) -> int:
        return int(torch.cuda.mem_get_info(self.device)[0])


def memory_of(device: str) -> Memory:
    """The memory of a device named as torch does.

    Raises ValueError for a device that is neither CPU nor CUDA, that is not there, or whose allocator
    is set to round otherwise than is documented.
    """
    try:
        named = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"no device is called {device!r}: write cpu, cuda or cuda:N") from error
    if named.type == "cpu":
        return HostMemory()
    if named.type == "cuda" and (named.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"no CUDA device here for {device!r}")
    if named.type == "cuda":
        return CudaMemory(named)
    raise ValueError(f"no allocator statistics are known for device {device!r}")
