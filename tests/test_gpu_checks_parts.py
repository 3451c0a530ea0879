"""What the codecs and plans of the checks on real memory are built of."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from kvconform.gpu_checks import inputs  # noqa: E402
from kvconform.gpu_checks.codec import HeadShape  # noqa: E402
from kvconform.gpu_checks.codecs import CODECS  # noqa: E402
from kvconform.gpu_checks.codecs_octave import levels  # noqa: E402
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
from kvconform.gpu_checks.model_plans import ENOUGH_BYTES, model_plan  # noqa: E402
from kvconform.gpu_checks.packing import pack_bits, unpack_bits  # noqa: E402
from kvconform.gpu_checks.plans import drawn  # noqa: E402
from kvconform.gpu_checks.rotation import blocks, rotate, unrotate  # noqa: E402
from kvconform.reference.arithmetic import cdiv  # noqa: E402
from kvconform.reference.interface import Refused  # noqa: E402
from kvconform.reference.layout import allocated_bytes  # noqa: E402
from kvconform.reference.models import model, models  # noqa: E402


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


def test_every_model_but_one_is_planned_and_small() -> None:
    """DeepSeek V4 is sized and not planned: its index pages divide no other page (docs/models.md)."""
    for packed in (False, True):
        refused, large = [], []
        for name in models():
            try:
                config = model_plan(name, packed)
            except Refused:
                refused.append(name)
                continue
            assert sum(len(group.layer_names) for group in config.kv_cache_groups) == len(
                model(name).layers()
            )
            if allocated_bytes(config) > ENOUGH_BYTES:
                large.append(allocated_bytes(config))
        assert refused == ["deepseek-v4-flash"]
        assert len(large) <= 4
        assert max(large) < 8 * ENOUGH_BYTES


def test_octave_levels_are_the_int8_of_the_codebook() -> None:
    """Published as Lloyd-Max codebooks in int8, symmetric and without a zero."""
    for bits in (3, 4):
        table = levels(bits)
        assert len(table) == 1 << bits
        assert table == tuple(-level for level in reversed(table))
        assert list(table) == sorted(set(table))
        assert 120 < table[-1] <= 127
        assert 0 not in table
