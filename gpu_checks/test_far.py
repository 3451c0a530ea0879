"""device/far-offsets."""

from __future__ import annotations

import pytest
from kvconform.gpu_checks.far import WRAPS, check_far, far_size
from kvconform.gpu_checks.memory import HostMemory, Memory
from kvconform.gpu_checks.plugin import Tally

MEBIBYTE = 1 << 20
pytestmark = pytest.mark.law("device/far-offsets")


def needed(memory: Memory, size: int) -> int:
    """Bytes really taken: on the host only what is touched, as untouched pages are never made."""
    return 64 * MEBIBYTE if isinstance(memory, HostMemory) else size


@pytest.mark.large
@pytest.mark.parametrize(("page", "stride"), [(8192, 8192), (1000, 1_000_003), (37440, 65536)])
@pytest.mark.parametrize("limit", WRAPS, ids=["2 GiB", "4 GiB"])
def test_blocks_past_the_limit(limit: int, page: int, stride: int, memory: Memory, tally: Tally) -> None:
    wanted = needed(memory, far_size(limit, page, stride))
    if memory.available() < wanted:
        pytest.skip(f"{memory.available()} bytes available, wanted {wanted}")
    check_far(memory, limit, page, stride)
    tally.count("tensors past 2 or 4 GiB")
