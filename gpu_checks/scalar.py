"""Every codec once more, one element at a time in plain Python: the second source of packed bytes.

Nothing here is shared with the tensor codecs but the signs of the rotation, which are part of the
format. Rows are lists of finite floats. Fractions keep divisions exact; sums are `math.fsum`.
"""

from __future__ import annotations

import bisect
import math
import struct
from collections.abc import Callable, Sequence
from fractions import Fraction

from kvconform.gpu_checks.rotation import signs

Row = Sequence[float]
LEAST_NORMAL = 2.0**-126


def _minifloat(exponent_bits: int, mantissa_bits: int, bias: int, codes: int) -> list[Fraction]:
    """The values of the non-negative codes 0..codes - 1, ascending."""
    found = []
    for code in range(codes):
        exponent, mantissa = divmod(code, 1 << mantissa_bits)
        fraction = Fraction(mantissa, 1 << mantissa_bits)
        if exponent == 0:
            found.append(fraction * Fraction(2) ** (1 - bias))
        else:
            found.append((1 + fraction) * Fraction(2) ** (exponent - bias))
    assert codes <= 1 << (exponent_bits + mantissa_bits)
    return found


E4M3 = _minifloat(4, 3, 7, 127)
E5M2 = _minifloat(5, 2, 15, 124)
E2M1 = _minifloat(2, 1, 1, 8)


def _nearest(value: Fraction, table: list[Fraction]) -> int:
    """The code nearest to a non-negative value, the even one where two are as near."""
    above = min(bisect.bisect_left(table, value), len(table) - 1)
    return min((max(above - 1, 0), above), key=lambda code: (abs(table[code] - value), code % 2))


def _small_float(value: float, scale: Fraction, table: list[Fraction], sign_bit: int) -> int:
    code = _nearest(abs(Fraction(value)) / scale, table)
    return code | (sign_bit if math.copysign(1, value) < 0 else 0)


def _float32(value: float | Fraction) -> float:
    return float(struct.unpack("<f", struct.pack("<f", float(value)))[0])


def _float16(value: float | Fraction) -> float:
    return float(struct.unpack("<e", struct.pack("<e", float(value)))[0])


def _rounded(value: Fraction) -> int:
    return round(value)


def _clamped(value: int, least: int, greatest: int) -> int:
    return min(max(value, least), greatest)


def _bits(codes: Sequence[int], width: int) -> bytes:
    """Codes side by side, the first in the lowest bits of one long number."""
    number = sum(code << (width * index) for index, code in enumerate(codes))
    return number.to_bytes(-(-width * len(codes) // 8), "little")


def _rotated(row: Row) -> list[float]:
    """Each block times its Hadamard matrix, whose entry (i, j) is -1 to the common bits of i and j."""
    flipped = [sign * value for sign, value in zip(signs(len(row)), row, strict=True)]
    found: list[float] = []
    start, left = 0, len(row)
    while left:
        width = 1 << (left.bit_length() - 1)
        block = flipped[start : start + width]
        for i in range(width):
            terms = (-value if (i & j).bit_count() % 2 else value for j, value in enumerate(block))
            found.append(math.fsum(terms) / math.sqrt(width))
        start, left = start + width, left - width
    return found


def _row_scale(row: Row, largest: int) -> float:
    return _float32(max(max(map(abs, row), default=0.0) / largest, LEAST_NORMAL))


def _float32_rows(row: Row) -> bytes:
    return struct.pack(f"<{len(row)}f", *row)


def _float16_rows(row: Row) -> bytes:
    return struct.pack(f"<{len(row)}e", *row)


def _bfloat16_rows(row: Row) -> bytes:
    packed = b""
    for value in row:
        bits = int.from_bytes(struct.pack("<f", value), "little")
        upper, lower = divmod(bits, 1 << 16)
        upper += lower > 0x8000 or (lower == 0x8000 and upper % 2 == 1)
        packed += upper.to_bytes(2, "little")
    return packed


def _fp8(table: list[Fraction]) -> Callable[[Row], bytes]:
    return lambda row: bytes(_small_float(value, Fraction(1), table, 0x80) for value in row)


def _int8(row: Row) -> bytes:
    scale = _row_scale(row, 127)
    codes = [_clamped(_rounded(Fraction(value) / Fraction(scale)), -127, 127) for value in row]
    return struct.pack(f"<{len(row)}b", *codes) + struct.pack("<f", scale)


def _scaled_fp8(row: Row) -> bytes:
    scale = _row_scale(row, 448)
    return bytes(_small_float(value, Fraction(scale), E4M3, 0x80) for value in row) + struct.pack("<f", scale)


def _int4(row: Row) -> bytes:
    rotated = _rotated(row)
    low, high = min(0.0, *rotated), max(0.0, *rotated)
    wanted = max((high - low) / 15, LEAST_NORMAL)
    bits = int.from_bytes(struct.pack("<f", wanted), "little") // 16 * 16
    while struct.unpack("<f", bits.to_bytes(4, "little"))[0] < wanted:
        bits += 16
    step = Fraction(struct.unpack("<f", bits.to_bytes(4, "little"))[0])
    zero_point = _clamped(_rounded(-Fraction(low) / step), 0, 15)
    codes = [_clamped(_rounded(Fraction(value) / step) + zero_point, 0, 15) for value in rotated]
    return _bits(codes, 4) + (bits + zero_point).to_bytes(4, "little")


def _fp4_block(block: Row, largest_code: int) -> tuple[int, list[int], Fraction]:
    """Scale byte, codes and squared error of one block of 16."""
    wanted = max(Fraction(max(map(abs, block))) / largest_code, E4M3[1])
    stored = _nearest(wanted, E4M3)
    step = E4M3[stored]
    codes = [_small_float(value, step, E2M1, 8) for value in block]
    error = Fraction(0)
    for code, value in zip(codes, block, strict=True):
        error += (E2M1[code % 8] * step * (-1 if code >= 8 else 1) - Fraction(value)) ** 2
    return stored, codes, error


def _nvfp4(four_over_six: bool) -> Callable[[Row], bytes]:
    def pack(row: Row) -> bytes:
        codes: list[int] = []
        scales = []
        for start in range(0, len(row), 16):
            choice = _fp4_block(row[start : start + 16], 6)
            if four_over_six:
                other = _fp4_block(row[start : start + 16], 4)
                choice = other if other[2] < choice[2] else choice
            scales.append(choice[0])
            codes += choice[1]
        return _bits(codes, 4) + bytes(scales)

    return pack


def _power_above(value: float) -> int:
    """The exponent, from -127 up, of the least power of two >= value."""
    exponent = -127
    while Fraction(2) ** exponent < Fraction(value):
        exponent += 1
    return exponent


def _ultraquant(rotated: bool) -> Callable[[Row], bytes]:
    def pack(row: Row) -> bytes:
        values = _rotated(row) if rotated else row
        codes: list[int] = []
        scales = []
        for start in range(0, len(values), 32):
            group = values[start : start + 32]
            exponent = _power_above(max(map(abs, group)) / 6)
            scales.append(exponent + 127)
            codes += [_small_float(value, Fraction(2) ** exponent, E2M1, 8) for value in group]
        return _bits(codes, 4) + bytes(scales)

    return pack


MAX_1960 = {
    3: (0.2451, 0.7560, 1.344, 2.152),
    4: (0.1284, 0.3881, 0.6568, 0.9424, 1.256, 1.618, 2.069, 2.733),
}
"""Positive centroids as Max published them, to four digits: the codebook is checked against them."""


def _lloyd_max(bits: int, centroids: Sequence[float]) -> Callable[[Row], bytes]:
    def pack(row: Row) -> bytes:
        norm = math.sqrt(math.fsum(value * value for value in row))
        rotated = _rotated([value / norm for value in row]) if norm else list(row)
        codes = []
        for value in rotated:
            coded = value * math.sqrt(len(row))
            codes.append(min(range(1 << bits), key=lambda code, z=coded: abs(centroids[code] - z)))  # type: ignore[misc]
        return _bits(codes, bits) + struct.pack("<e", _float32(norm))

    return pack


def _uniform(bits: int) -> Callable[[Row], bytes]:
    def pack(row: Row) -> bytes:
        greatest = (1 << bits) - 1
        zero = _float16_towards(min(row), -math.inf)
        step = _float16_towards(max((max(row) - zero) / greatest, 2.0**-24), math.inf)
        codes = [
            _clamped(_rounded((Fraction(value) - Fraction(zero)) / Fraction(step)), 0, greatest)
            for value in row
        ]
        return _bits(codes, bits) + struct.pack("<ee", step, zero)

    return pack


def _float16_towards(value: float, direction: float) -> float:
    """The nearest float16 at or past the value in a direction, found by walking the bit patterns."""
    near = _float16(value)
    while (near < value) if direction > 0 else (near > value):
        bits = int.from_bytes(struct.pack("<e", near), "little")
        away = (near >= 0) == (direction > 0)
        if near == 0:
            bits = 0x0001 if direction > 0 else 0x8001
        else:
            bits += 1 if away else -1
        near = float(struct.unpack("<e", bits.to_bytes(2, "little"))[0])
    return near


def _ds_mla(row: Row) -> bytes:
    codes, scales = b"", []
    for start in range(0, 512, 128):
        packed = _scaled_fp8(row[start : start + 128])
        codes += packed[:128]
        scales.append(packed[128:])
    return codes + _bfloat16_rows(row[512:]) + b"".join(scales)


def _ds_mla_v4(row: Row) -> bytes:
    codes, scales = b"", b""
    for start in range(0, 448, 64):
        group = row[start : start + 64]
        exponent = _power_above(max(map(abs, group)) / 448)
        codes += bytes(_small_float(value, Fraction(2) ** exponent, E4M3, 0x80) for value in group)
        scales += bytes([exponent + 127])
    return codes + _bfloat16_rows(row[448:]) + scales + b"\0"


def _octave(
    blocks: Sequence[tuple[int, int]], centroids: dict[int, Sequence[float]]
) -> Callable[[Row], bytes]:
    """A head cut into (width, bits); the codes of all, then the float16 scales of all."""

    def pack(row: Row) -> bytes:
        codes, scales, start = b"", b"", 0
        for width, bits in blocks:
            packed, scale = _octave_block(row[start : start + width], bits, centroids[bits])
            codes, scales, start = codes + packed, scales + scale, start + width
        return codes + scales

    return pack


def _octave_block(block: Row, bits: int, centroids: Sequence[float]) -> tuple[bytes, bytes]:
    a_deviation = int(127 / max(centroids))
    table = [round(centroid * a_deviation) for centroid in centroids]
    norm = math.sqrt(math.fsum(value * value for value in block))
    rotated = _rotated([value / norm for value in block]) if norm else [0.0] * len(block)
    wanted = [value * math.sqrt(len(block)) * a_deviation for value in rotated]
    codes = [min(range(1 << bits), key=lambda code, z=z: abs(table[code] - z)) for z in wanted]  # type: ignore[misc]
    along = math.fsum(value * table[code] for value, code in zip(rotated, codes, strict=True))
    return _bits(codes, bits), struct.pack("<e", _float32(64 * norm / along if norm else 0.0))


def packers(centroids: dict[int, Sequence[float]]) -> dict[str, tuple[Callable[[Row], bytes], ...]]:
    """The functions that pack one row of K and one of V, by the codec's name.

    ``centroids`` are the codebooks of 3 and 4 bits, ascending: they are part of the format.
    """
    three, four = (_lloyd_max(bits, centroids[bits]) for bits in (3, 4))
    eight_levels, sixteen_levels = (_octave(((256, bits),), centroids) for bits in (3, 4))
    block_keys = _octave(((64, 4), (64, 3), (64, 3), (64, 3)), centroids)
    return {
        "none_float32": (_float32_rows, _float32_rows),
        "none_float16": (_float16_rows, _float16_rows),
        "none_bfloat16": (_bfloat16_rows, _bfloat16_rows),
        "fp8_e4m3": (_fp8(E4M3), _fp8(E4M3)),
        "fp8_e5m2": (_fp8(E5M2), _fp8(E5M2)),
        "int8_per_token_head": (_int8, _int8),
        "fp8_per_token_head": (_scaled_fp8, _scaled_fp8),
        "int4_per_token_head": (_int4, _int4),
        "nvfp4": (_nvfp4(False), _nvfp4(False)),
        "nvfp4_4over6": (_nvfp4(True), _nvfp4(True)),
        "ultraquant_4bit": (_ultraquant(True), _ultraquant(False)),
        "turboquant_k8v4": (_fp8(E4M3), _uniform(4)),
        "turboquant_4bit_nc": (four, _uniform(4)),
        "turboquant_k3v4_nc": (three, _uniform(4)),
        "turboquant_3bit_nc": (three, _uniform(3)),
        "octave_k3v4": (block_keys, sixteen_levels),
        "octave_k3v3": (block_keys, eight_levels),
        "octave_k3v3_compact": (eight_levels, eight_levels),
        "fp8_ds_mla": (_ds_mla,),
        "fp8_ds_mla_deepseek_v4": (_ds_mla_v4,),
    }
