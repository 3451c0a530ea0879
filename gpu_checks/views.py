"""Laws device/views-cover, guards-survive and zero-exact on the memory of a planned configuration.

A view is how an engine sees one layer: blocks by bytes, strided over a raw allocation. What it
touches is compared, byte for byte, with the ranges that the reference lays out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from kvconform.gpu_checks.allocation import allocation_sizes
from kvconform.gpu_checks.memory import Memory
from kvconform.properties.law import ensure, ensure_equal
from kvconform.reference.arithmetic import cdiv
from kvconform.reference.interface import Refused
from kvconform.reference.layout import Placement, page_range, placements
from kvconform.reference.planning import KVCacheConfig
from torch import Tensor

GUARD = 4096
"""Guard bytes before and after every allocation."""
GUARD_BYTE = 0xA5

MakeView = Callable[[Tensor, Placement, int], Tensor]
Clear = Callable[[Tensor, Tensor], None]


def view_of(raw: Tensor, place: Placement, num_blocks: int) -> Tensor:
    """The layer's blocks ``[num_blocks, page]`` in its raw allocation, strided."""
    start = int(raw.storage_offset()) + place.offset
    return raw.as_strided((num_blocks, place.page), (place.stride, 1), start)


def typed(view: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """The same blocks as ``[num_blocks, *shape]`` of a type, without a copy.

    Raises `Refused` where pages, strides or the start are no whole number of elements, or the
    shape does not fill a page.
    """
    width = dtype.itemsize
    if view.shape[1] % width or view.stride(0) % width or view.storage_offset() % width:
        raise Refused(f"pages of {view.shape[1]} bytes, {view.stride(0)} apart, hold no whole {dtype}")
    cells = view.view(dtype)
    if cells.shape[1] != torch.Size(shape).numel():
        raise Refused(f"a page holds {cells.shape[1]} elements, not {shape}")
    return torch.unflatten(cells, 1, shape)


def kernel_blocks(view: Tensor, split: int) -> Tensor:
    """Manager blocks ``[num_blocks, page]`` as ``[num_blocks x split, page / split]``.

    Kernel block i of manager block b is number b x split + i. One number can stand for both only
    where pages follow one another without gaps; elsewhere, and where a page does not split, raises
    `Refused`.
    """
    blocks, page = view.shape
    if page % split:
        raise Refused(f"a page of {page} bytes does not split into {split} kernel blocks")
    if view.stride(0) != page:
        raise Refused(
            f"pages of {page} bytes lie {view.stride(0)} apart: kernel blocks cannot be numbered through"
        )
    part = page // split
    return view.as_strided((blocks * split, part), (part, 1), view.storage_offset())


def clear_blocks(view: Tensor, blocks: Tensor) -> None:
    """Zero these blocks (int64 ids) of a layer's view."""
    view.index_fill_(0, blocks, 0)


@dataclass
class Laid:
    """A configuration on real memory, guards around every allocation, all filled with the guard byte."""

    config: KVCacheConfig
    guarded: dict[int, Tensor]
    raw: dict[int, Tensor]
    places: tuple[Placement, ...]

    def owned(self) -> dict[int, Tensor]:
        """For each allocation which bytes lie in some layer's page, by the reference's ranges."""
        masks = {
            number: torch.zeros(tensor.numel(), dtype=torch.bool) for number, tensor in self.guarded.items()
        }
        for place in self.places:
            for block in range(self.config.num_blocks):
                start, end = page_range(place, block)
                masks[place.allocation][GUARD + start : GUARD + end] = True
        return {number: mask.to(self.guarded[number].device) for number, mask in masks.items()}

    def page(self, place: Placement, block: int) -> Tensor:
        """The bytes of a page, as a plain slice of its allocation."""
        start, end = page_range(place, block)
        return self.raw[place.allocation][start:end]

    def snapshot(self) -> dict[int, Tensor]:
        """A copy of everything, guards included."""
        return {number: tensor.clone() for number, tensor in self.guarded.items()}


def lay_out(config: KVCacheConfig, memory: Memory) -> Laid:
    """Allocate a configuration with guards."""
    guarded, raw = {}, {}
    for number, size in allocation_sizes(config).items():
        guarded[number] = memory.allocate(GUARD + size + GUARD).fill_(GUARD_BYTE)
        raw[number] = guarded[number].narrow(0, GUARD, size)
    return Laid(config, guarded, raw, placements(config))


def pattern(layer: int, blocks: Tensor, page: int) -> Tensor:
    """Bytes of its own for each page of a layer: uint8 ``[len(blocks), page]``, all below the guard byte."""
    # Eight bytes at a time; whole numbers wrap around, the same on every device.
    word = torch.arange(cdiv(page, 8), device=blocks.device, dtype=torch.int64)
    mixed = (
        (word + 1) * 0x1E3779B97F4A7C15
        + (blocks.to(torch.int64).unsqueeze(1) + 1) * 0x3F58476D1CE4E5B9
        + ((layer + 1) * 0x14D049BB133111EB & 0x7FFFFFFFFFFFFFFF)
    )
    mixed.bitwise_xor_(mixed >> 29).mul_(0x2545F4914F6CDD1D).bitwise_xor_(mixed >> 32)
    return mixed.bitwise_and_(0x7F7F7F7F7F7F7F7F).view(torch.uint8)[:, :page]


def turns(config: KVCacheConfig) -> Iterator[tuple[int, int]]:
    """Which blocks (first, step) which group holds, once for every group's turn.

    A block belongs to one group at a time: in one turn they hold every n-th block each, and over n
    turns each group has held each block.
    """
    groups = len(config.kv_cache_groups)
    for turn in range(groups):
        yield turn, groups


def check_views(config: KVCacheConfig, memory: Memory, make_view: MakeView = view_of) -> None:
    """Every layer's view of every block covers exactly its page.

    In each turn every layer fills the blocks of its group with a pattern of its own through its
    view; then each page is read back twice, through the view and as the plain byte range of the
    reference, and every byte of no page still holds the guard.
    """
    laid = lay_out(config, memory)
    views = {
        place.layer: make_view(laid.raw[place.allocation], place, config.num_blocks) for place in laid.places
    }
    outside = {number: mask.logical_not_() for number, mask in laid.owned().items()}
    for turn, groups in turns(config):
        held = {}
        for index, place in enumerate(laid.places):
            first = (place.group + turn) % groups
            blocks = torch.arange(first, config.num_blocks, groups, device=memory.device)
            held[place.layer] = blocks
            views[place.layer][blocks] = pattern(index, blocks, place.page)
        for index, place in enumerate(laid.places):
            wanted = pattern(index, held[place.layer], place.page)
            ensure(
                torch.equal(views[place.layer][held[place.layer]], wanted),
                f"layer {place.layer}: its view does not read back what it wrote",
            )
            for row, block in zip(wanted, held[place.layer].tolist(), strict=True):
                ensure(
                    torch.equal(laid.page(place, block), row),
                    f"layer {place.layer}, block {block}: bytes {page_range(place, block)} of allocation "
                    f"{place.allocation} do not hold what its view wrote",
                )
    # Nothing writes the guard byte, so what was written in any turn is seen after the last.
    _check_guards(laid, outside)


def _check_guards(laid: Laid, outside: dict[int, Tensor]) -> None:
    """device/guards-survive: every byte that is in no page holds the guard."""
    for number, tensor in laid.guarded.items():
        broken = ((tensor != GUARD_BYTE) & outside[number]).nonzero()
        ensure(
            broken.numel() == 0,
            f"allocation {number}: {broken.shape[0]} bytes outside every page were written"
            + (f", the first at {int(broken[0]) - GUARD}" if broken.numel() else ""),
        )


def check_clear(
    config: KVCacheConfig, memory: Memory, clear: Clear = clear_blocks, make_view: MakeView = view_of
) -> None:
    """Clearing a block clears that block in every layer of its group and not a byte beside it.

    Law zero/exact-span (vllm#50276, vllm#49696), over the first, a middle and the last block.
    """
    laid = lay_out(config, memory)
    for tensor in laid.guarded.values():
        tensor.copy_(pattern(0, torch.zeros(1, device=memory.device), tensor.numel())[0].clamp(min=1))
    for block in sorted({0, config.num_blocks // 2, config.num_blocks - 1}):
        for group in range(len(config.kv_cache_groups)):
            before = laid.snapshot()
            for place in laid.places:
                if place.group != group:
                    continue
                view = make_view(laid.raw[place.allocation], place, config.num_blocks)
                clear(view, torch.tensor([block], device=memory.device))
                start, end = page_range(place, block)
                before[place.allocation][GUARD + start : GUARD + end] = 0
            for number, wanted in before.items():
                differing = (laid.guarded[number] != wanted).nonzero()
                ensure(
                    differing.numel() == 0,
                    f"clearing block {block} of group {group}: {differing.shape[0]} bytes of allocation "
                    f"{number} are not as wanted = zero in its pages, untouched beside them"
                    + (f"; the first at {int(differing[0]) - GUARD}" if differing.numel() else ""),
                )


def check_kernel_blocks(config: KVCacheConfig, memory: Memory, split: int) -> int:
    """A manager block split into kernel blocks addresses the same bytes; how many layers could be split.

    Layers whose pages are not contiguous must be refused.
    """
    laid = lay_out(config, memory)
    tried = 0
    for index, place in enumerate(laid.places):
        view = view_of(laid.raw[place.allocation], place, config.num_blocks)
        if place.page % split or place.stride != place.page:
            try:
                kernel_blocks(view, split)
            except Refused:
                continue
            ensure(False, f"layer {place.layer}: pages with gaps were numbered through")
        blocks = torch.arange(config.num_blocks, device=memory.device)
        wanted = pattern(index, blocks, place.page)
        kernel = kernel_blocks(view, split)
        ids = blocks.unsqueeze(1) * split + torch.arange(split, device=memory.device)
        kernel[ids.flatten()] = wanted.reshape(-1, place.page // split)
        for block in range(config.num_blocks):
            ensure(
                torch.equal(laid.page(place, block), wanted[block]),
                f"layer {place.layer}, block {block}: {split} kernel blocks do not address its page",
            )
        ensure_equal(kernel.shape[0], config.num_blocks * split, "kernel blocks", "manager blocks x split")
        tried += 1
    return tried
