"""device/roundtrip-bytes and roundtrip-error, for every codec, head size and dtype."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from kvconform.gpu_checks import inputs
from kvconform.gpu_checks.codec import DTYPES, Codec, HeadShape, shape_of
from kvconform.gpu_checks.codecs import CODECS, shape_for
from kvconform.gpu_checks.codecs_fp4 import BlockFp4
from kvconform.gpu_checks.codecs_turboquant import LloydMaxKey
from kvconform.gpu_checks.memory import Memory
from kvconform.gpu_checks.plugin import Tally
from kvconform.gpu_checks.roundtrip import cell_of, check_bytes, check_error, stored_bytes
from kvconform.properties.cells import HEAD_SIZES, UNLIKE
from kvconform.reference.interface import Refused
from kvconform.reference.modes import packed_head_slots
from kvconform.reference.pages import unpadded_page_size_bytes
from torch import Tensor

each_codec = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)


def codecs_named(*names: str) -> pytest.MarkDecorator:
    """These codecs only."""
    return pytest.mark.parametrize("codec", [CODECS[name] for name in names], ids=names)


each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))

SHAPES = (
    *(HeadShape(size, size) for size in inputs.HEAD_SIZES + inputs.ODD_SIZES),
    *(HeadShape(size, None) for size in inputs.HEAD_SIZES + inputs.ODD_SIZES),
    *(HeadShape(key, value) for key, value in UNLIKE),
)


def storable(codec: Codec, dtype: torch.dtype, tally: Tally) -> Iterator[HeadShape]:
    """The shapes that the codec stores; each other one must be refused by reference and codec alike."""
    for shape in SHAPES:
        try:
            stored_bytes(codec, shape, dtype)
        except Refused:
            with pytest.raises(Refused):
                codec.refuse(shape)
            tally.refusal(codec.name, shape)
            continue
        tally.codec(codec.name, shape, dtype)
        yield shape


def heads(shape: HeadShape, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Finite rows of every family, then special ones, for K and for V."""

    def both(size: int, seed: int) -> Tensor:
        if size == 0:
            return torch.empty(4 * len(inputs.FAMILIES) + len(inputs.SPECIALS), 0, dtype=dtype, device=device)
        return torch.cat((inputs.finite_rows(4, size, dtype, seed), inputs.special_rows(size, dtype))).to(
            device
        )

    return both(shape.key, 0), None if shape.value is None else both(shape.value, 1)


@pytest.mark.law("device/roundtrip-bytes", "device/roundtrip-error")
@each_dtype
@each_codec
def test_round_trips(codec: Codec, dtype: torch.dtype, memory: Memory, tally: Tally) -> None:
    if dtype not in codec.dtypes:
        with pytest.raises(Refused):
            codec.pack(torch.zeros(1, 16, dtype=dtype), torch.zeros(1, 16, dtype=dtype))
        return
    for shape in storable(codec, dtype, tally):
        keys, values = heads(shape, dtype, memory.device)
        check_bytes(codec, keys, values)
        for fitted in (codec, codec.calibrated(keys, values)):
            check_error(fitted, keys, values)


@pytest.mark.law("device/roundtrip-bytes")
@each_codec
def test_every_head_size_is_stored_exactly_or_refused(codec: Codec, memory: Memory, tally: Tally) -> None:
    dtype = codec.dtypes[-1]
    for size in HEAD_SIZES:
        shape = HeadShape(size, size) if codec.heads else HeadShape(size, None)
        rows = inputs.rows("normal", 1, size, dtype).to(memory.device)
        values = None if shape.value is None else rows
        try:
            stored_bytes(codec, shape, dtype)
        except Refused:
            with pytest.raises(Refused):
                codec.pack(rows, values)
            tally.refusal(codec.name, shape)
            continue
        check_bytes(codec, rows, values)
        tally.codec(codec.name, shape, dtype)


@pytest.mark.law("device/roundtrip-bytes")
@each_codec
def test_a_page_holds_its_cells_and_no_more(codec: Codec, memory: Memory) -> None:
    """Block x heads packed cells side by side are the page that the reference computes."""
    dtype = codec.dtypes[-1]
    shape = shape_for(codec, 96)
    spec = cell_of(codec, shape, dtype)
    slots = packed_head_slots(spec)
    content = stored_bytes(codec, shape, dtype) * spec.num_kv_heads // slots
    sized = replace(spec, num_head_slots=slots, state_content_bytes=content)
    rows = inputs.rows("normal", spec.block_size * spec.num_kv_heads, shape.key, dtype).to(memory.device)
    packed = codec.pack(rows, None if shape.value is None else rows)
    assert packed.numel() == unpadded_page_size_bytes(sized)


@pytest.mark.law("device/roundtrip-error")
@codecs_named("none_float32", "none_float16", "none_bfloat16")
def test_unquantised_heads_come_back_bit_for_bit(codec: Codec, memory: Memory) -> None:
    (dtype,) = codec.dtypes
    keys, values = heads(HeadShape(80, 80), dtype, memory.device)
    stored = codec.pack(keys, values)
    assert values is not None
    assert torch.equal(stored, torch.cat((keys.view(torch.uint8), values.view(torch.uint8)), dim=-1))


@pytest.mark.law("device/roundtrip-error")
@each_dtype
@codecs_named("fp8_e4m3", "fp8_e5m2")
def test_infinities_saturate_under_an_outer_scale(codec: Codec, dtype: torch.dtype, memory: Memory) -> None:
    keys = torch.tensor([[float("inf"), -float("inf"), 1.0, float("nan")]], dtype=dtype, device=memory.device)
    read, _ = codec.unpack(codec.pack(keys, None), shape_of(keys, None))
    largest = {"fp8_e4m3": 448.0, "fp8_e5m2": 57344.0}[codec.name]
    assert read[0, :3].tolist() == [largest, -largest, 1.0]
    assert bool(read[0, 3].isnan())


@pytest.mark.law("device/roundtrip-error")
@codecs_named("turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc")
def test_coded_keys_keep_their_length_and_lose_what_max_published(codec: Codec, memory: Memory) -> None:
    """Norm correction leaves only the float16 length's rounding; codes lose the mean square of Max 1960."""
    side = codec.key
    assert isinstance(side, LloydMaxKey)
    rows = inputs.rows("normal", 512, 128, torch.float32).to(memory.device)
    exact = rows.to(torch.float64)
    read = side.decode(side.encode(rows), 128)
    length = exact.norm(dim=-1)
    assert bool(((read.norm(dim=-1) - length).abs() <= length * 2.0**-11 + 2.0**-25).all())
    lost = (((read - exact).norm(dim=-1) / length) ** 2).mean()
    assert float(lost) == pytest.approx({3: 0.03454, 4: 0.009497}[side.bits], rel=0.05)


@pytest.mark.law("device/roundtrip-error")
@codecs_named("octave_k3v4", "octave_k3v3", "octave_k3v3_compact")
def test_a_block_scale_keeps_the_product_with_what_is_read(codec: Codec, memory: Memory) -> None:
    """The rule of the scale: x . x' = |x|^2, up to the float16 that it is stored in."""
    rows = inputs.rows("normal", 512, 256, torch.float32).to(memory.device)
    exact = rows.to(torch.float64)
    squared = (exact * exact).sum(dim=-1)
    for side in (codec.key, codec.value):
        read = side.decode(side.encode(rows), 256)
        assert bool((((read * exact).sum(dim=-1) - squared).abs() <= squared * 2.0**-10 + 1e-6).all())


@pytest.mark.law("device/roundtrip-error")
@each_dtype
@codecs_named("nvfp4_4over6")
def test_four_over_six_never_loses_more_in_a_block(codec: Codec, dtype: torch.dtype, memory: Memory) -> None:
    rows = torch.cat([inputs.finite_rows(16, size, dtype).reshape(-1, 16) for size in (64, 96, 128)])
    rows = rows.to(memory.device)
    errors = []
    for side in (BlockFp4(), codec.key):
        fitted = side.calibrated(rows)
        read = fitted.decode(fitted.encode(rows), 16)
        errors.append(((read - rows.to(torch.float64)) ** 2).sum(dim=-1))
    plain, chosen = errors
    assert bool((chosen <= plain * (1 + 1e-12)).all())
    everyday = inputs.rows("normal", 512, 16, dtype).to(memory.device)
    better = [
        ((side.decode(side.encode(everyday), 16) - everyday) ** 2).mean() for side in (codec.key, BlockFp4())
    ]
    assert better[0] < better[1]
