"""Law device/far-offsets: blocks of tensors past 2 GiB and 4 GiB, where narrow offsets wrap around."""

from __future__ import annotations

import torch
from kvconform.gpu_checks.memory import Memory
from kvconform.gpu_checks.plans import gapped
from kvconform.gpu_checks.views import GUARD_BYTE, MakeView, pattern, view_of
from kvconform.properties.law import ensure
from kvconform.reference.arithmetic import cdiv
from kvconform.reference.layout import page_range, placements

GIBIBYTE = 1 << 30
WRAPS = (1 << 31, 1 << 32)
"""Offsets at which a signed and an unsigned 32-bit number of bytes wrap around."""


def far_size(limit: int, page: int, stride: int) -> int:
    """Bytes of a tensor whose last block lies wholly past ``limit``, and one more past it."""
    return (cdiv(limit, stride) + 3) * stride + page


def check_far(
    memory: Memory,
    limit: int,
    page: int,
    stride: int,
    *,
    make_view: MakeView = view_of,
    wraps: tuple[int, ...] = WRAPS,
) -> None:
    """The blocks about ``limit`` and the last one are addressed right.

    Only a few blocks are touched: the first ones, those about each wrap-around below the limit, and
    the last two. The bytes that a wrapped offset would hit hold a guard, which must survive; what
    is written through block ids is read back as plain byte ranges. Clearing the last block leaves
    its neighbour alone. ``wraps`` are the offsets at which a narrow number would wrap around.
    """
    num_blocks = far_size(limit, page, stride) // stride
    config = gapped(page=page, stride=stride, offset=stride - page, num_blocks=num_blocks)
    place = placements(config)[0]
    raw = memory.allocate(place.size)
    view = make_view(raw, place, num_blocks)
    about = {0, 1, num_blocks - 2, num_blocks - 1}
    for wrap in wraps:
        near = wrap // stride
        about |= {block for block in (near - 1, near, near + 1) if block < num_blocks}
    ids = sorted(about)
    written = [page_range(place, block) for block in ids]
    aliases = [
        alias
        for start, _ in written
        for wrap in wraps
        if start >= wrap
        and not any(low < start % wrap + page and start % wrap < high for low, high in written)
        for alias in (start % wrap,)
    ]
    for alias in aliases:
        raw[alias : alias + page] = GUARD_BYTE
    blocks = torch.tensor(ids, device=memory.device)
    wanted = pattern(0, blocks, page)
    view[blocks] = wanted
    for row, (start, end), block in zip(wanted, written, ids, strict=True):
        ensure(
            torch.equal(raw[start:end], row),
            f"block {block}: bytes {start} to {end} do not hold what was written",
        )
    ensure(torch.equal(view[blocks], wanted), "blocks past the limit do not read back through their ids")
    for alias in aliases:
        ensure(
            bool((raw[alias : alias + page] == GUARD_BYTE).all()),
            f"bytes {alias} to {alias + page} were written, where a wrapped offset would fall",
        )
    view.index_fill_(0, blocks[-1:], 0)
    ensure(not bool(view[num_blocks - 1].any()), "the last block was not cleared")
    ensure(torch.equal(view[num_blocks - 2], wanted[-2]), "clearing the last block touched its neighbour")
    ensure(torch.equal(view[0], wanted[0]), "clearing the last block touched the first")
