"""The checks on real memory catch what they are for: for each check something wrong on purpose."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kvconform.gpu_checks import far, inputs, views  # noqa: E402
from kvconform.gpu_checks.allocation import check_allocation  # noqa: E402
from kvconform.gpu_checks.codec import Bound, Codec  # noqa: E402
from kvconform.gpu_checks.codecs import CODECS, shape_for  # noqa: E402
from kvconform.gpu_checks.codecs_fp4 import BlockFp4  # noqa: E402
from kvconform.gpu_checks.codecs_octave import Block, Blocks  # noqa: E402
from kvconform.gpu_checks.codecs_per_token_head import (  # noqa: E402
    RotatedInt4,
    SymmetricInt8,
)
from kvconform.gpu_checks.codecs_turboquant import LloydMaxKey, UniformValue  # noqa: E402
from kvconform.gpu_checks.memory import CudaMemory, HostMemory, Memory, memory_of  # noqa: E402
from kvconform.gpu_checks.plans import collection  # noqa: E402
from kvconform.gpu_checks.roundtrip import check_bytes, check_error, check_same_bytes  # noqa: E402
from kvconform.properties.law import Violation  # noqa: E402
from kvconform.reference.layout import Placement  # noqa: E402
from kvconform.reference.planning import KVCacheConfig  # noqa: E402
from torch import Tensor  # noqa: E402

HOST = memory_of("cpu")
PLANS = collection()
each_codec = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)


def heads_for(codec: Codec, family: str = "normal") -> tuple[Tensor, Tensor | None]:
    """A few rows that the codec takes, in the last of its types."""
    shape = shape_for(codec, 64)
    keys = inputs.rows(family, 4, shape.key, codec.dtypes[-1])
    return keys, None if shape.value is None else keys.flip(0)


# Faults that a check must catch


@dataclass(frozen=True)
class Miscounted(Codec):
    """Stores so many bytes more, or fewer, than it should."""

    by: int = 0

    def pack(self, keys: Tensor, values: Tensor | None) -> Tensor:
        stored = super().pack(keys, values)
        return torch.nn.functional.pad(stored, (0, self.by))


@each_codec
@pytest.mark.parametrize("by", [-1, 1])
def test_a_codec_one_byte_off_is_caught(codec: Codec, by: int) -> None:
    fields = {name: getattr(codec, name) for name in Codec.__dataclass_fields__}
    keys, values = heads_for(codec)
    check_bytes(codec, keys, values)
    with pytest.raises(Violation, match="bytes written"):
        check_bytes(Miscounted(**fields, by=by), keys, values)


class TruncatedInt8(SymmetricInt8):
    """Cuts off where it should round."""

    def encode(self, rows: Tensor) -> tuple[Tensor, ...]:
        scale = super().encode(rows)[1]
        step = scale.clone().view(torch.float32).to(torch.float64)
        return (rows.to(torch.float64) / step).trunc().to(torch.int8).view(torch.uint8), scale


class HidingInt8(SymmetricInt8):
    """Answers zero for what is not finite."""

    def encode(self, rows: Tensor) -> tuple[Tensor, ...]:
        return super().encode(rows.nan_to_num(0.0, 0.0, 0.0))


class ShiftedInt4(RotatedInt4):
    """Reads the zero point one too high."""

    def decode(self, parts: tuple[Tensor, ...], size: int) -> Tensor:
        packed, carried = parts
        bits = carried.clone().view(torch.int32)
        higher = (bits & ~0xF) | (((bits & 0xF) + 1) & 0xF)
        return super().decode((packed, higher.view(torch.uint8)), size)


class UncoveredValue(UniformValue):
    """Reads steps a quarter too short, so that the greatest value is missed."""

    def encode(self, rows: Tensor) -> tuple[Tensor, ...]:
        packed, step, zero = super().encode(rows)
        return packed, (step.clone().view(torch.float16) * 0.75).view(torch.uint8), zero


class LongKey(LloydMaxKey):
    """Reads the length three times over."""

    def decode(self, parts: tuple[Tensor, ...], size: int) -> Tensor:
        return super().decode(parts, size) * 3


class ShrunkOctave(Blocks):
    """Reads every block half as long."""

    def decode(self, parts: tuple[Tensor, ...], size: int) -> Tensor:
        return super().decode(parts, size) / 2


class LowFp4(BlockFp4):
    """Reads block scales a power of two too small."""

    def decode(self, parts: tuple[Tensor, ...], size: int) -> Tensor:
        return super().decode(parts, size) / 2


@pytest.mark.parametrize(
    ("name", "side", "family"),
    [
        ("int8_per_token_head", TruncatedInt8(), "normal"),
        ("int4_per_token_head", ShiftedInt4(), "normal"),
        ("turboquant_4bit_nc", UncoveredValue(4), "normal"),
        ("turboquant_3bit_nc", UncoveredValue(3), "heavy-tailed"),
        ("turboquant_4bit_nc", LongKey(4), "normal"),
        ("nvfp4", LowFp4(), "normal"),
        ("octave_k3v4", ShrunkOctave((Block(64, 4), Block(64, 3), Block(64, 3), Block(64, 3))), "normal"),
        ("octave_k3v3_compact", ShrunkOctave((Block(256, 3),)), "normal"),
    ],
)
def test_a_codec_that_loses_too_much_is_caught(name: str, side: Any, family: str) -> None:
    codec = CODECS[name]
    keys, values = heads_for(codec, family)
    check_error(codec, keys, values)
    wrong = replace(codec, value=side) if isinstance(side, UniformValue) else replace(codec, key=side)
    with pytest.raises(Violation, match="off by"):
        check_error(wrong, keys, values)


def test_a_codec_that_hides_a_nan_is_caught() -> None:
    codec = replace(CODECS["int8_per_token_head"], key=HidingInt8())
    rows = inputs.special_rows(64, torch.bfloat16)
    with pytest.raises(Violation, match="read as NaN"):
        check_error(codec, rows, rows)


def test_the_uniform_bounds_leave_little_room() -> None:
    """Halved, each of them is broken by some row: none of the checks passes for a slack bound."""

    def halved(side: type) -> type:
        def bound(self: Any, rows: Tensor) -> Bound:
            whole = side.bound(self, rows)  # type: ignore[attr-defined]
            return Bound(whole.element / 2, whole.row / 2, whole.rotated)

        return type("Halved", (side,), {"bound": bound})

    for name, side in (
        ("int8_per_token_head", halved(SymmetricInt8)()),
        ("int4_per_token_head", halved(RotatedInt4)()),
        ("turboquant_4bit_nc", halved(UniformValue)(4)),
        ("turboquant_3bit_nc", halved(UniformValue)(3)),
    ):
        keys, values = heads_for(CODECS[name])
        with pytest.raises(Violation, match="off by"):
            check_error(replace(CODECS[name], value=side), keys, values)


def test_other_bytes_are_caught() -> None:
    codec = CODECS["int4_per_token_head"]
    keys, values = heads_for(codec)
    stored = codec.pack(keys, values)
    swapped = stored.clone()
    swapped[1, 3] = (stored[1, 3] >> 4) | (stored[1, 3] << 4)
    check_same_bytes("int4", stored, stored.clone())
    with pytest.raises(Violation, match="byte 3 of row 1"):
        check_same_bytes("int4", swapped, stored)
    with pytest.raises(Violation, match="shape"):
        check_same_bytes("int4", stored[:, :-1], stored)


def byte_off(raw: Tensor, place: Placement, num_blocks: int) -> Tensor:
    """A view that starts a byte late."""
    return views.view_of(raw, replace(place, offset=place.offset + 1), num_blocks)


def stride_off(raw: Tensor, place: Placement, num_blocks: int) -> Tensor:
    """A view whose blocks lie a byte too close."""
    return views.view_of(raw, replace(place, stride=place.stride - 1), num_blocks)


def layer_lost(raw: Tensor, place: Placement, num_blocks: int) -> Tensor:
    """A view that forgets where in the block its layer lies."""
    return views.view_of(raw, replace(place, offset=0), num_blocks)


@pytest.mark.parametrize("wrong", [byte_off, stride_off])
@pytest.mark.parametrize("config", PLANS.values(), ids=PLANS)
def test_a_view_one_byte_off_is_caught(config: KVCacheConfig, wrong: views.MakeView) -> None:
    with pytest.raises(Violation):
        views.check_views(config, HOST, wrong)


def test_a_view_without_its_offset_is_caught() -> None:
    with pytest.raises(Violation):
        views.check_views(PLANS["full and sliding, packed"], HOST, layer_lost)


def clear_a_stride_too_long(view: Tensor, ids: Tensor) -> None:
    """Clears on to the end of the next block."""
    for block in ids.tolist():
        start = view.storage_offset() + block * view.stride(0)
        room = view.untyped_storage().nbytes() - start
        view.as_strided((min(view.stride(0) + view.shape[1], room),), (1,), start).zero_()


def clear_the_whole_stride(view: Tensor, ids: Tensor) -> None:
    """Clears what other layers have in the block, too."""
    for block in ids.tolist():
        view.as_strided((view.stride(0),), (1,), view.storage_offset() + block * view.stride(0)).zero_()


def clear_all_but_a_byte(view: Tensor, ids: Tensor) -> None:
    """Leaves the last byte."""
    view[:, :-1].index_fill_(0, ids, 0)


@pytest.mark.parametrize("wrong", [clear_a_stride_too_long, clear_all_but_a_byte])
@pytest.mark.parametrize("config", PLANS.values(), ids=PLANS)
def test_a_clear_of_other_bytes_is_caught(config: KVCacheConfig, wrong: views.Clear) -> None:
    with pytest.raises(Violation, match="clearing block"):
        views.check_clear(config, HOST, wrong)


def test_a_clear_of_the_whole_stride_is_caught() -> None:
    for name in ("full and sliding, packed", "full and sliding, strided", "gaps in every block"):
        with pytest.raises(Violation, match="clearing block"):
            views.check_clear(PLANS[name], HOST, clear_the_whole_stride)


class PageTooSmall(HostMemory):
    """Takes a page less than asked for."""

    def allocate(self, size: int) -> Tensor:
        return super().allocate(max(size - self.rounding, 1))


class TwiceTheSame(HostMemory):
    """Gives two tensors the same memory."""

    def __init__(self) -> None:
        self.given: dict[int, Tensor] = {}

    def allocate(self, size: int) -> Tensor:
        if size in self.given:
            return self.given.pop(size)
        self.given[size] = super().allocate(size)
        return self.given[size]


class Leaking(HostMemory):
    """Never gives anything back."""

    def __init__(self) -> None:
        self.kept: list[Tensor] = []

    def allocate(self, size: int) -> Tensor:
        self.kept.append(super().allocate(size))
        return self.kept[-1]


@pytest.mark.parametrize(
    ("memory", "says"),
    [(PageTooSmall(), "grew by"), (TwiceTheSame(), "grew by"), (Leaking(), "left after freeing")],
    ids=["a page too small", "twice the same", "leaking"],
)
def test_a_wrong_allocation_is_caught(memory: Memory, says: str) -> None:
    config = PLANS["full and sliding"]
    check_allocation(config, HOST)
    with pytest.raises(Violation, match=says):
        check_allocation(config, memory)


class Wrapping:
    """A view whose byte offsets wrap around at 2^16, as narrow integers would."""

    def __init__(self, raw: Tensor, place: Placement, num_blocks: int) -> None:
        self.raw, self.place = raw, place

    def _bytes(self, ids: Tensor) -> Tensor:
        starts = self.place.offset + ids.reshape(-1, 1) * self.place.stride
        return (starts + torch.arange(self.place.page)) % (1 << 16)

    def __getitem__(self, ids: Tensor) -> Tensor:
        return self.raw[self._bytes(torch.as_tensor(ids))]

    def __setitem__(self, ids: Tensor, rows: Tensor) -> None:
        self.raw[self._bytes(ids)] = rows

    def index_fill_(self, dimension: int, ids: Tensor, value: int) -> None:
        self.raw[self._bytes(ids)] = value


def test_a_wrapped_offset_is_caught() -> None:
    make: Any = Wrapping
    far.check_far(HOST, 1 << 16, 100, 257, wraps=(1 << 16,))
    with pytest.raises(Violation, match="do not hold"):
        far.check_far(HOST, 1 << 16, 100, 257, make_view=make, wraps=(1 << 16,))


# The device's allocator


def test_the_rounding_of_torch_s_allocator_is_the_documented_one() -> None:
    """What torch's caching allocator may take for a plan, worked out by hand; needs no device."""
    mebibyte = 1 << 20
    memory = CudaMemory.__new__(CudaMemory)
    assert memory.expected([1000]) == {
        "requested": (1000, 1000),
        "allocated": (1024, 1024),
        "reserved": (0, 2 * mebibyte),
        "driver": (0, 4 * mebibyte),
    }
    # 19.5 MiB is given a segment of 20 MiB, whose last half is too little to be split off.
    assert memory.expected([39 * mebibyte // 2]) == {
        "requested": (39 * mebibyte // 2, 39 * mebibyte // 2),
        "allocated": (39 * mebibyte // 2, 41 * mebibyte // 2),
        "reserved": (39 * mebibyte // 2, 20 * mebibyte),
        "driver": (39 * mebibyte // 2, 22 * mebibyte),
    }
    assert memory.expected([2 * mebibyte])["reserved"] == (2 * mebibyte, 20 * mebibyte)


def test_an_allocator_that_rounds_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "roundup_power2_divisions:4")
    with pytest.raises(ValueError, match="PYTORCH_CUDA_ALLOC_CONF changes how"):
        CudaMemory(torch.device("cuda", 0))
