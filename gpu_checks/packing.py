"""Small codes side by side in bytes, first code in the lowest bits."""

from __future__ import annotations

import torch
from kvconform.reference.arithmetic import cdiv
from torch import Tensor
from torch.nn.functional import pad

_CODES = 8
"""Codes taken together: eight codes of b bits are b whole bytes."""


def pack_bits(codes: Tensor, bits: int) -> Tensor:
    """Codes ``[.., n]`` below 2^bits as bytes ``[.., ceil(bits x n / 8)]``, little end first.

    Code i takes bits i x ``bits`` and up of the row; bits left over in the last byte are 0.
    ``bits`` is 1 to 7. With 4 bits: two codes a byte, the first in the low nibble.
    """
    count = codes.shape[-1]
    length = cdiv(bits * count, 8)
    if bits == 4 and count % 2 == 0:
        return codes[..., 0::2] | (codes[..., 1::2] << 4)
    words = in_groups(pad(codes, (0, -count % _CODES)).to(torch.int64), _CODES)
    word = torch.zeros_like(words[..., 0])
    for index in range(_CODES):
        word |= words[..., index] << (bits * index)
    octets = torch.stack([(word >> (8 * index)) & 0xFF for index in range(bits)], dim=-1)
    return octets.flatten(-2).to(torch.uint8)[..., :length]


def unpack_bits(stored: Tensor, bits: int, count: int) -> Tensor:
    """The first ``count`` codes of rows that `pack_bits` made, as uint8 ``[.., count]``."""
    if bits == 4:
        return torch.stack((stored & 0xF, stored >> 4), dim=-1).flatten(-2)[..., :count]
    padded = in_groups(pad(stored, (0, -stored.shape[-1] % bits)).to(torch.int64), bits)
    word = torch.zeros_like(padded[..., 0])
    for index in range(bits):
        word |= padded[..., index] << (8 * index)
    codes = torch.stack([(word >> (bits * index)) & ((1 << bits) - 1) for index in range(_CODES)], dim=-1)
    return codes.flatten(-2).to(torch.uint8)[..., :count]


def in_groups(values: Tensor, size: int) -> Tensor:
    """Rows ``[.., n]`` cut into groups of ``size``: ``[.., n / size, size]``."""
    return torch.unflatten(values, -1, (values.shape[-1] // size, size))


def split(stored: Tensor, lengths: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Rows cut into parts of these many bytes; what follows the last part is dropped."""
    parts = []
    start = 0
    for length in lengths:
        parts.append(stored[..., start : start + length])
        start += length
    return tuple(parts)
