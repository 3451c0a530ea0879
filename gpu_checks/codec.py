"""What a codec is: keys and values of one head to bytes and back, with a stated error bound.

A codec is a `Side` for K and one for V. Stored rows are K's parts, then V's, then padding. The order
of parts is this project's own; their number and lengths are the mode's (FACTS section 10).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from kvconform.gpu_checks.floats import norm_last
from kvconform.gpu_checks.packing import split
from kvconform.gpu_checks.rotation import rotate
from kvconform.reference.arithmetic import round_up, total
from kvconform.reference.interface import Refused
from torch import Tensor
from torch.nn.functional import pad

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
"""Element types that an engine computes in."""


class HeadShape(NamedTuple):
    """Elements of one K head and of one V head; ``value`` None: a latent, stored once."""

    key: int
    value: int | None

    def __str__(self) -> str:
        return f"a latent of {self.key}" if self.value is None else f"K {self.key}, V {self.value}"


class Bound(NamedTuple):
    """What a round trip may change in rows ``[n, size]``; both float64.

    ``element`` ``[n, size]`` bounds each element in the domain that is coded: the head as it is, or
    rotated where ``rotated``. None where only whole rows are bounded. ``row`` ``[n]`` bounds the
    Euclidean length of a row's error, which no rotation changes.
    """

    element: Tensor | None
    row: Tensor
    rotated: bool = False

    @classmethod
    def of_elements(cls, element: Tensor, rotated: bool = False) -> Bound:
        """The bound of rows that follows from that of their elements."""
        return cls(element, norm_last(element).squeeze(-1), rotated)

    def coded(self, values: Tensor) -> Tensor:
        """Float64 rows in the domain that ``element`` speaks of."""
        return rotate(values) if self.rotated else values


class Side:
    """How one head of K or V is stored. Rows are ``[n, size]``; decoded values are float64."""

    def refuse(self, size: int) -> None:
        """Raise `Refused` for a head size that would lose elements."""

    def lengths(self, size: int) -> tuple[int, ...]:
        """Bytes of each stored part."""
        raise NotImplementedError

    def encode(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Each part as uint8 ``[n, length]``."""
        raise NotImplementedError

    def decode(self, parts: tuple[Tensor, ...], size: int) -> Tensor:
        """The values that the parts stand for, before any rounding to a narrower type."""
        raise NotImplementedError

    def bound(self, rows: Tensor) -> Bound:
        """The error bound that the class derives, from the rows alone."""
        raise NotImplementedError

    def reads_nan(self, rows: Tensor) -> Tensor:
        """Which elements read back as NaN: by default those that are NaN."""
        return rows.isnan()

    def calibrated(self, rows: Tensor) -> Side:  # noqa: ARG002
        """The side with any scale kept outside the cache fitted to the rows."""
        return self


class RowScaled(Side):
    """A side with one scale for the whole row.

    Codes cannot hold an infinity or a NaN, and a finite answer would hide it: the scale becomes
    NaN, so that the whole row reads back as NaN.
    """

    def reads_nan(self, rows: Tensor) -> Tensor:
        return (~finite_rows(rows)).expand(rows.shape)


def finite_rows(rows: Tensor) -> Tensor:
    """Which rows are finite throughout, ``[.., 1]``."""
    return rows.isfinite().all(dim=-1, keepdim=True)


def finite_or_zero(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Float64 rows with those that are not finite throughout zeroed, and which were finite."""
    finite = finite_rows(rows)
    return torch.where(finite, rows.to(torch.float64), 0.0), finite


def extent(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Least and greatest of each row, ``[.., 1]``; 0 for rows of no elements."""
    if rows.shape[-1] == 0:
        nothing = rows.new_zeros((*rows.shape[:-1], 1))
        return nothing, nothing
    return rows.amin(dim=-1, keepdim=True), rows.amax(dim=-1, keepdim=True)


def largest_magnitude(rows: Tensor) -> Tensor:
    """Greatest magnitude of each row, ``[.., 1]``; 0 for rows of no elements."""
    return extent(rows.abs())[1]


@dataclass(frozen=True)
class Codec:
    """One way of storing K and V of a (head slot, state).

    ``mode`` is the reference's name of the mode, None where the reference has none. ``latents``:
    may store a latent; ``heads``: may store separate K and V. ``multiple``: rows are padded with
    zeros to a multiple of so many bytes. ``equal``: K and V must be of one size. ``dtypes``: element
    types that it takes.
    """

    name: str
    mode: str | None
    key: Side
    value: Side
    latents: bool = False
    heads: bool = True
    equal: bool = False
    multiple: int = 1
    dtypes: tuple[torch.dtype, ...] = DTYPES

    def refuse(self, shape: HeadShape) -> None:
        """Raise `Refused` for a shape that cannot be stored without losing elements."""
        if shape.value is None and not self.latents:
            raise Refused(f"{self.name} has no layout for a latent")
        if shape.value is not None and not self.heads:
            raise Refused(f"{self.name} stores a latent only")
        if self.equal and shape.key != shape.value:
            raise Refused(f"{self.name} needs equal heads (K {shape.key}, V {shape.value})")
        self.key.refuse(shape.key)
        if shape.value:
            self.value.refuse(shape.value)

    def pack(self, keys: Tensor, values: Tensor | None) -> Tensor:
        """Bytes uint8 ``[n, stored]`` of keys ``[n, k]`` and values ``[n, v]``; None: a latent.

        Raises `Refused` as `refuse` does, and for an element type that it does not take.
        """
        self.refuse(shape_of(keys, values))
        if keys.dtype not in self.dtypes:
            raise Refused(f"{self.name} does not take {keys.dtype}")
        parts = self.key.encode(keys) + self.value.encode(_or_empty(values, keys))
        stored = torch.cat(parts, dim=-1)
        return pad(stored, (0, -stored.shape[-1] % self.multiple))

    def unpack(self, stored: Tensor, shape: HeadShape) -> tuple[Tensor, Tensor | None]:
        """Float64 keys ``[n, k]`` and values ``[n, v]`` of bytes ``[n, stored]``."""
        self.refuse(shape)
        key_lengths = self.key.lengths(shape.key)
        value_lengths = self.value.lengths(shape.value or 0)
        length = round_up(total(key_lengths + value_lengths), self.multiple)
        if stored.shape[-1] != length:
            raise Refused(f"{self.name} reads {length} bytes, not {stored.shape[-1]}")
        parts = split(stored, key_lengths + value_lengths)
        keys = self.key.decode(parts[: len(key_lengths)], shape.key)
        if shape.value is None:
            return keys, None
        return keys, self.value.decode(parts[len(key_lengths) :], shape.value)

    def calibrated(self, keys: Tensor, values: Tensor | None) -> Codec:
        """The codec with scales kept outside the cache fitted to the data."""
        value = self.value.calibrated(_or_empty(values, keys))
        return replace(self, key=self.key.calibrated(keys), value=value)


class Absent(Side):
    """The V side of a layout that stores a latent only: nothing."""

    def lengths(self, size: int) -> tuple[int, ...]:  # noqa: ARG002
        return ()

    def encode(self, rows: Tensor) -> tuple[Tensor, ...]:  # noqa: ARG002
        return ()


def shape_of(keys: Tensor, values: Tensor | None) -> HeadShape:
    """The head shape of rows of keys and values."""
    return HeadShape(keys.shape[-1], None if values is None else values.shape[-1])


def _or_empty(values: Tensor | None, keys: Tensor) -> Tensor:
    return keys.new_empty((keys.shape[0], 0)) if values is None else values
