"""The checks on real memory catch what they are for, and the bounds they use are proved."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import z3

torch = pytest.importorskip("torch")

from kvconform.gpu_checks import far, inputs, views  # noqa: E402
from kvconform.gpu_checks.allocation import check_allocation  # noqa: E402
from kvconform.gpu_checks.codec import Bound, Codec, HeadShape  # noqa: E402
from kvconform.gpu_checks.codecs import CODECS  # noqa: E402
from kvconform.gpu_checks.codecs_fp4 import BlockFp4  # noqa: E402
from kvconform.gpu_checks.codecs_per_token_head import (  # noqa: E402
    RotatedInt4,
    SymmetricInt8,
    nearest_code,
)
from kvconform.gpu_checks.codecs_turboquant import LloydMaxKey, UniformValue  # noqa: E402
from kvconform.gpu_checks.floats import (  # noqa: E402
    E4M3,
    E5M2,
    decode_e2m1,
    decode_fp8,
    decode_ue8m0,
    encode_e2m1,
    encode_fp8,
    encode_ue8m0,
    to_float16_down,
    to_float16_up,
)
from kvconform.gpu_checks.memory import HostMemory, Memory, memory_of  # noqa: E402
from kvconform.gpu_checks.packing import pack_bits, unpack_bits  # noqa: E402
from kvconform.gpu_checks.plans import collection, drawn  # noqa: E402
from kvconform.gpu_checks.rotation import blocks, rotate, unrotate  # noqa: E402
from kvconform.gpu_checks.roundtrip import check_bytes, check_error, check_same_bytes  # noqa: E402
from kvconform.properties.law import Violation  # noqa: E402
from kvconform.reference.arithmetic import cdiv  # noqa: E402
from kvconform.reference.interface import Refused  # noqa: E402
from kvconform.reference.layout import Placement  # noqa: E402
from kvconform.reference.planning import KVCacheConfig  # noqa: E402
from torch import Tensor  # noqa: E402

HOST = memory_of("cpu")
PLANS = collection()
FIXED = {"fp8_ds_mla": HeadShape(576, None), "fp8_ds_mla_deepseek_v4": HeadShape(512, None)}
each_codec = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)


def heads_for(codec: Codec, family: str = "normal") -> tuple[Tensor, Tensor | None]:
    """A few rows that the codec takes, in the last of its types."""
    shape = FIXED.get(codec.name, HeadShape(64, 64))
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


# What the codecs are built of


@pytest.mark.parametrize("bits", range(1, 8))
def test_bits_come_back_in_order(bits: int) -> None:
    for count in range(34):
        codes = torch.arange(3 * count).reshape(3, count).mul(7).remainder(1 << bits).to(torch.uint8)
        packed = pack_bits(codes, bits)
        assert packed.shape == (3, cdiv(bits * count, 8))
        assert torch.equal(unpack_bits(packed, bits, count), codes)


def test_every_narrow_float_comes_back() -> None:
    codes = torch.arange(256).to(torch.uint8)
    for kind in (E4M3, E5M2):
        values = decode_fp8(codes, kind)
        finite = values.isfinite()
        assert torch.equal(encode_fp8(values, kind)[finite], codes[finite])
    assert torch.equal(encode_e2m1(decode_e2m1(codes[:16])), codes[:16])
    powers = decode_ue8m0(codes)
    assert torch.equal(encode_ue8m0(powers), codes)
    assert torch.equal(encode_ue8m0(powers[:-2] * 1.0001), codes[1:-1])


def test_float16_is_rounded_to_the_side_asked_for() -> None:
    values = torch.cat((inputs.finite_rows(8, 64, torch.float32).flatten(), torch.linspace(-1e-7, 1e-7, 99)))
    exact = values.to(torch.float64).clamp(-65504, 65504)
    up, down = to_float16_up(exact).to(torch.float64), to_float16_down(exact).to(torch.float64)
    assert bool((up >= exact).all())
    assert bool((down <= exact).all())
    step = torch.maximum(exact.abs() * 2.0**-10, torch.tensor(2.0**-24))
    assert bool((up - down <= step).all())


def test_rotation_keeps_lengths_and_turns_back() -> None:
    for size in (1, 2, 15, 16, 80, 127, 512, 576):
        assert sum(blocks(size)) == size
        rows = inputs.rows("normal", 4, size, torch.float32).to(torch.float64)
        assert torch.allclose(unrotate(rotate(rows)), rows, rtol=0, atol=1e-10)
        assert torch.allclose(rotate(rows).norm(dim=-1), rows.norm(dim=-1))
    spread = rotate(torch.eye(64, dtype=torch.float64)[:1])
    assert torch.allclose(spread.abs(), torch.full_like(spread, 1 / 8))


def test_a_codec_refuses_what_it_cannot_read() -> None:
    codec = CODECS["int8_per_token_head"]
    with pytest.raises(Refused, match="reads 136 bytes"):
        codec.unpack(torch.zeros(1, 135, dtype=torch.uint8), HeadShape(64, 64))
    with pytest.raises(Refused, match="does not take"):
        codec.pack(torch.zeros(1, 64, dtype=torch.int32), None)


def test_drawn_plans_are_the_same_each_time() -> None:
    first, again = dict(drawn(12)), dict(drawn(12))
    assert first == again
    assert len({len(config.kv_cache_tensors) for config in first.values()}) > 1


# Half a step: the bounds of the uniform codecs over the reals
#
# Everything is divided by the step, so a step is 1 and the arithmetic linear. A nearest whole
# number is any within half: ties may go either way.


def nearest(value: z3.ArithRef, name: str) -> tuple[z3.ArithRef, z3.BoolRef]:
    """A whole number nearest to the value, and the condition that it is."""
    code = z3.Int(name)
    return code, z3.And(2 * code - 1 <= 2 * value, 2 * value <= 2 * code + 1)


def clamped(value: Any, least: int, greatest: int) -> Any:
    """The value, within least..greatest."""
    return z3.If(value < least, least, z3.If(value > greatest, greatest, value))


def within_half(one: Any, other: Any) -> Any:
    """Whether two reals are at most half a step apart."""
    return z3.And(2 * (one - other) <= 1, 2 * (other - one) <= 1)


def holds(assumptions: list[Any], claim: Any) -> bool:
    """Whether the claim follows; the assumptions alone must have a model, or it would mean nothing."""
    solver = z3.Solver()
    solver.add(*assumptions)
    assert solver.check() == z3.sat
    solver.add(z3.Not(claim))
    found = solver.check()
    assert found != z3.unknown
    return bool(found == z3.unsat)


def test_int8_is_within_half_a_step() -> None:
    value = z3.Real("value")
    code, is_nearest = nearest(value, "code")
    claim = within_half(value, clamped(code, -127, 127))
    # A float32 scale falls short of the greatest magnitude / 127 by at most 2^-24 of itself.
    limit = 127 * (1 + z3.Q(1, 1 << 23))
    in_range = z3.And(-limit <= value, value <= limit)
    assert holds([is_nearest, in_range], claim)
    assert not holds([is_nearest], claim)


@pytest.mark.parametrize("greatest", [7, 15])
def test_an_asymmetric_code_is_within_half_a_step(greatest: int) -> None:
    """int4: zero point nearest to -lo, and lo..hi, 0 within, spans no more than all steps."""
    low, high, value = z3.Reals("low high value")
    zero_point, zero_is_nearest = nearest(-low, "zero_point")
    code, is_nearest = nearest(value, "code")
    claim = within_half(value, clamped(code + zero_point, 0, greatest) - zero_point)
    inside = z3.And(low <= value, value <= high)
    with_zero = z3.And(low <= 0, high >= 0)
    covers = high - low <= greatest
    assert holds([zero_is_nearest, is_nearest, inside, with_zero, covers], claim)
    assert holds([zero_is_nearest, with_zero, covers], z3.And(zero_point >= 0, zero_point <= greatest))
    assert not holds([zero_is_nearest, is_nearest, inside, with_zero], claim)
    assert not holds([zero_is_nearest, is_nearest, with_zero, covers], claim)
    # Without 0 in the range the zero point would not fit its four bits.
    assert not holds([zero_is_nearest, covers, low <= high], z3.And(zero_point >= 0, zero_point <= greatest))


@pytest.mark.parametrize("greatest", [7, 15])
def test_a_value_code_is_within_half_a_step(greatest: int) -> None:
    """turboquant values: a zero at or below the least value, and a step that covers the greatest."""
    low, high, value, zero, step = z3.Reals("low high value zero step")
    inside = z3.And(low <= value, value <= high)
    below, covers = zero <= low, greatest * step >= high - zero
    in_steps = z3.And(value - zero >= 0, value - zero <= greatest * step)
    assert holds([inside, below, covers, step > 0], in_steps)
    assert not holds([inside, covers, step > 0], in_steps)
    assert not holds([inside, below, step > 0], in_steps)
    steps = z3.Real("steps")
    code, is_nearest = nearest(steps, "code")
    claim = within_half(steps, clamped(code, 0, greatest))
    assert holds([is_nearest, steps >= 0, steps <= greatest], claim)
    assert not holds([is_nearest], claim)


def test_the_code_s_own_rounding_is_the_proved_one() -> None:
    steps = torch.linspace(-140, 140, 100_001, dtype=torch.float64)
    for least, greatest in ((-127, 127), (0, 15), (0, 7)):
        inside = (steps >= least - 0.5) & (steps <= greatest + 0.5)
        assert bool(((nearest_code(steps, least, greatest) - steps).abs()[inside] <= 0.5).all())


# The command


def test_the_checks_run_as_a_package(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "--pyargs", "kvconform.gpu_checks", "--device", "cpu"]
    chosen = "small or int4_per_token_head or (typed and uint8) or (takes and latents)"
    done = subprocess.run(
        [*command, "-k", chosen, f"--junitxml={report}", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "device: cpu, anonymous mappings, rounded up to pages of" in done.stdout
    assert "codecs x " in done.stdout
    assert "Warning" not in done.stdout
    laws = {found.get("value") for found in ElementTree.parse(report).iter("property")}
    assert {"device/far-offsets", "device/roundtrip-bytes", "device/allocates-what-was-computed"} <= laws


@pytest.mark.parametrize(
    ("device", "says"),
    [
        ("meta", "no allocator statistics"),
        pytest.param(
            "cuda",
            "no CUDA device here",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device"),
        ),
    ],
)
def test_a_device_that_cannot_be_checked_is_refused(device: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        memory_of(device)


def test_every_law_of_the_area_has_a_check() -> None:
    folder = Path(views.__file__).parent
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("test_*.py")))
    named = {
        law for marker in re.findall(r"mark\.law\((.*?)\)", text) for law in re.findall(r'"(.*?)"', marker)
    }
    assert named == {
        "device/allocates-what-was-computed",
        "device/views-cover",
        "device/guards-survive",
        "device/roundtrip-bytes",
        "device/roundtrip-error",
        "device/same-as-host",
        "device/far-offsets",
        "device/zero-exact",
    }
