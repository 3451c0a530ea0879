"""device/same-as-host: packed bytes against plain Python, and those of a device against the CPU's."""

from __future__ import annotations

import pytest
import torch
from kvconform.gpu_checks import inputs
from kvconform.gpu_checks.codec import Codec, HeadShape
from kvconform.gpu_checks.codecs import CODECS, shape_for
from kvconform.gpu_checks.codecs_turboquant import codebook
from kvconform.gpu_checks.memory import Memory
from kvconform.gpu_checks.plugin import Tally
from kvconform.gpu_checks.roundtrip import check_same_bytes, stored_bytes
from kvconform.gpu_checks.scalar import MAX_1960, packers
from kvconform.reference.interface import Refused
from torch import Tensor

pytestmark = pytest.mark.law("device/same-as-host")
each_codec = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
TIED = ("fp8_e4m3", "fp8_e5m2", "fp8_per_token_head", "nvfp4", "nvfp4_4over6", "fp8_ds_mla")
"""Codecs that do not rotate: a rotated tie is none."""
PACKERS = packers({bits: codebook(bits) for bits in (3, 4)})


def sizes_of(codec: Codec, sizes: tuple[int, ...]) -> list[HeadShape]:
    """The shapes of these sizes that the codec stores."""
    found = []
    for shape in dict.fromkeys(shape_for(codec, size) for size in sizes):
        try:
            stored_bytes(codec, shape, codec.dtypes[0])
        except Refused:
            continue
        found.append(shape)
    return found


def packed_plainly(codec: Codec, keys: Tensor, values: Tensor | None) -> Tensor:
    """The rows' bytes by `scalar`."""
    sides = PACKERS[codec.name]
    packed = []
    for index in range(keys.shape[0]):
        row = sides[0](keys[index].tolist())
        if values is not None:
            row += sides[1](values[index].tolist())
        packed.append(list(row + bytes(-len(row) % codec.multiple)))
    return torch.tensor(packed, dtype=torch.uint8)


@each_codec
def test_bytes_are_those_of_plain_python(codec: Codec, memory: Memory, tally: Tally) -> None:
    for shape in sizes_of(codec, (16, 18, 33, 64, 96)):
        for dtype in codec.dtypes:
            keys = inputs.rows("normal", 2, shape.key, dtype)
            values = None if shape.value is None else inputs.rows("normal", 2, shape.value, dtype, seed=1)
            on_device = codec.pack(
                keys.to(memory.device), None if values is None else values.to(memory.device)
            )
            name = f"{codec.name} {shape} {dtype} on {memory.device} beside plain Python"
            check_same_bytes(name, on_device, packed_plainly(codec, keys, values))
            tally.count("rows packed like plain Python", 2)


@pytest.mark.parametrize("codec", [CODECS[name] for name in TIED], ids=TIED)
def test_ties_are_broken_as_in_plain_python(codec: Codec, memory: Memory) -> None:
    for shape in sizes_of(codec, (64, 80)):
        keys = inputs.tied_rows(2, shape.key, torch.bfloat16)
        values = None if shape.value is None else keys.flip(0)
        on_device = codec.pack(keys.to(memory.device), None if values is None else values.to(memory.device))
        check_same_bytes(f"{codec.name} {shape}, ties", on_device, packed_plainly(codec, keys, values))


@each_codec
def test_bytes_of_the_device_are_those_of_the_cpu(codec: Codec, memory: Memory) -> None:
    if memory.device.type == "cpu":
        pytest.skip("the device is the CPU, which the plain Python packing is compared with")
    for shape in sizes_of(codec, inputs.HEAD_SIZES + inputs.ODD_SIZES):
        for dtype in codec.dtypes:
            keys = torch.cat((inputs.finite_rows(4, shape.key, dtype), inputs.special_rows(shape.key, dtype)))
            values = None if shape.value is None else keys.flip(0)
            for fitted in (codec, codec.calibrated(keys, values)):
                there = fitted.pack(
                    keys.to(memory.device), None if values is None else values.to(memory.device)
                )
                check_same_bytes(f"{codec.name} {shape} {dtype}", there, fitted.pack(keys, values))


@pytest.mark.parametrize("bits", [3, 4])
def test_codebook_is_the_published_one(bits: int) -> None:
    positive = codebook(bits)[1 << (bits - 1) :]
    assert positive == pytest.approx(MAX_1960[bits], rel=5e-4)
    assert codebook(bits)[: 1 << (bits - 1)] == tuple(-value for value in reversed(positive))
