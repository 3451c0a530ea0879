"""Laws device/roundtrip-bytes, roundtrip-error and same-as-host, each as a check of one codec.

A check raises `Violation` with got, wanted and which formula.
"""

from __future__ import annotations

import torch
from kvconform.gpu_checks import codecs_ds_mla, codecs_octave
from kvconform.gpu_checks.codec import Bound, Codec, HeadShape, Side, shape_of
from kvconform.properties import cells
from kvconform.properties.law import ensure, ensure_equal
from kvconform.reference import modes
from kvconform.reference.specs import AttentionSpec
from torch import Tensor

GUARD = 32
"""Bytes kept before and after every cell."""
LAYOUTS = {**codecs_ds_mla.STORED_BYTES, **codecs_octave.STORED_BYTES}
"""Stored bytes of layouts that have a constant for them, by the codec's name."""
BACKGROUNDS = (0xA5, 0x5A)
"""Two fillings: a byte that is the same over both was written."""


def cell_of(codec: Codec, shape: HeadShape, dtype: torch.dtype) -> AttentionSpec:
    """The spec of a layer that stores heads of this shape with the codec's mode."""
    if codec.name in cells.DS_MLA:
        return cells.DS_MLA[codec.name]
    mode = codec.mode or codec.name.upper()
    return cells.cell(mode, shape.key, shape.value, str(dtype).removeprefix("torch."))


def stored_bytes(codec: Codec, shape: HeadShape, dtype: torch.dtype) -> int:
    """Bytes that one (KV head, state) must take: the reference's table, or the layout's constant.

    Raises `Refused` where the reference does.
    """
    if codec.mode is not None:
        return modes.stored_bytes(cell_of(codec, shape, dtype))
    codec.refuse(shape)
    if codec.name in LAYOUTS:
        return LAYOUTS[codec.name]
    # UltraQuant: half a byte an element, one scale byte for each group of 32.
    return (shape.key + (shape.value or 0)) * 17 // 32


def check_bytes(codec: Codec, keys: Tensor, values: Tensor | None) -> None:
    """device/roundtrip-bytes: packing writes exactly the stored bytes, and what is read is there."""
    wanted = stored_bytes(codec, shape_of(keys, values), keys.dtype)
    packed = codec.pack(keys, values)
    length = GUARD + max(wanted, packed.shape[-1]) + GUARD
    memories = []
    for background in BACKGROUNDS:
        memory = torch.full((keys.shape[0], length), background, dtype=torch.uint8, device=keys.device)
        memory[:, GUARD : GUARD + packed.shape[-1]] = packed
        memories.append(memory)
    written = memories[0] == memories[1]
    ensure_equal(
        sorted(set(written.sum(dim=-1).tolist())),
        [wanted],
        f"{codec.name}: bytes written for one state of {shape_of(keys, values)}",
        "stored bytes of the mode",
    )
    ensure(
        bool(written[:, GUARD : GUARD + wanted].all()),
        f"{codec.name}: wrote outside its cell of {wanted} bytes",
    )
    cell = memories[0][:, GUARD : GUARD + wanted]
    again = codec.unpack(cell, shape_of(keys, values))
    for read, direct in zip(again, codec.unpack(packed, shape_of(keys, values)), strict=True):
        ensure(
            read is direct is None or _same(read, direct),
            f"{codec.name}: a cell between guards reads otherwise than its bytes alone",
        )


def check_error(codec: Codec, keys: Tensor, values: Tensor | None) -> None:
    """device/roundtrip-error: unpacking is within the stated bound, and NaN where it says so."""
    shape = shape_of(keys, values)
    read_keys, read_values = codec.unpack(codec.pack(keys, values), shape)
    _check_side(f"{codec.name} K {shape}", codec.key, keys, read_keys)
    if values is not None and read_values is not None:
        _check_side(f"{codec.name} V {shape}", codec.value, values, read_values)


def _check_side(name: str, side: Side, rows: Tensor, read: Tensor) -> None:
    lost = side.reads_nan(rows)
    ensure(
        torch.equal(read.isnan(), lost),
        f"{name}: {int(read.isnan().sum())} elements read as NaN, wanted {int(lost.sum())} of {rows.numel()}",
    )
    whole = ~lost.any(dim=-1) & rows.isfinite().all(dim=-1)
    if not bool(whole.any()):
        return
    rows, read = rows[whole], read[whole]
    bound = side.bound(rows)
    exact = rows.to(torch.float64)
    slack = _slack(exact)
    if bound.element is not None:
        moved = (bound.coded(read) - bound.coded(exact)).abs()
        _ensure_within(name, "element", moved, bound.element + slack.unsqueeze(-1))
    error = read - exact
    _ensure_within(name, "row", _length(error), bound.row * (1 + 1e-9) + slack)
    _ensure_within(name, "row as its own type", *_as_own_type(rows, read, bound, slack))


def _as_own_type(rows: Tensor, read: Tensor, bound: Bound, slack: Tensor) -> tuple[Tensor, Tensor]:
    """Error of rows read in the type that they came in, and what rounding to it may add.

    A reader saturates; that only brings a value nearer to the finite one that it stands for.
    """
    limits = torch.finfo(rows.dtype)
    clamped = read.clamp(limits.min, limits.max)
    narrow = clamped.to(torch.float32).to(rows.dtype).to(torch.float64)
    ulp = clamped.abs() * limits.eps + limits.smallest_normal * limits.eps
    return _length(narrow - rows.to(torch.float64)), bound.row * (1 + 1e-9) + _length(ulp) + slack


def _slack(exact: Tensor) -> Tensor:
    """What float64 itself loses on a row: a few units in the last place of its length."""
    return _length(exact) * 2.0**-44


def _length(rows: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(rows, dim=-1)
    return length


def _ensure_within(name: str, what: str, got: Tensor, wanted: Tensor) -> None:
    excess = (got > wanted).flatten()
    if bool(excess.any()):
        first = int(excess.nonzero()[0])
        worst, allowed = float(got.flatten()[first]), float(wanted.flatten()[first])
        ensure(
            False, f"{name}: {what} {first} is off by {worst:.6g}, wanted at most {allowed:.6g} = the bound"
        )
    ensure(True, "")


def check_same_bytes(name: str, got: Tensor, wanted: Tensor) -> None:
    """device/same-as-host: the bytes packed here equal those packed elsewhere."""
    ensure_equal(
        tuple(got.shape), tuple(wanted.shape), f"{name}: shape of the packed rows", "the other source's"
    )
    differing = (got.cpu() != wanted.cpu()).nonzero()
    if differing.numel():
        row, column = differing[0].tolist()
        ensure(
            False,
            f"{name}: byte {column} of row {row} is {int(got[row, column])}, wanted "
            f"{int(wanted[row, column])}; {differing.shape[0]} bytes differ",
        )
    ensure(True, "")


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    return (
        one is not None and other is not None and bool(((one == other) | (one.isnan() & other.isnan())).all())
    )
