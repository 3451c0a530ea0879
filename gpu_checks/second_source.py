"""Laws quant/content-formula and page/content-formula with the codec as a second source.

Three numbers for every cell: the bytes that the codec really writes, the reference's table, and
what an implementation under test reports. Its answers come in a file, because an implementation
may need an interpreter of its own; without one the third number is the reference's own.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from kvconform.gpu_checks.codec import Codec, HeadShape
from kvconform.gpu_checks.codecs import ONLY_SHAPES
from kvconform.gpu_checks.roundtrip import cell_of, stored_bytes
from kvconform.properties import cells
from kvconform.properties.law import ensure, ensure_equal
from kvconform.reference import modes, pages
from kvconform.reference.interface import Refused, Unsupported
from kvconform.reference.specs import AttentionSpec, MLAAttention


class Fell(Exception):
    """The implementation fell over a question; says how."""


@dataclass(frozen=True)
class Reported:
    """What an implementation says of cells.

    ``stored`` answers bytes of one (KV head, state), ``page`` those of a page that stores them.
    Each raises `Refused`, `Unsupported` or `Fell` where the implementation did.
    """

    implementation: str
    stored: Callable[[AttentionSpec], int]
    page: Callable[[AttentionSpec], int]


@dataclass
class Compared:
    """What a comparison went through: how many cells agreed, and why others were not compared."""

    agreed: int = 0
    beyond: int = 0
    missing: Counter[str] = field(default_factory=Counter)


def reference() -> Reported:
    """The reference's own answers."""
    return Reported(
        "reference", _known, lambda spec: pages.unpadded_page_size_bytes(modes.pack(_asked(spec)))
    )


def _known(spec: AttentionSpec) -> int:
    return modes.stored_bytes(_asked(spec))


def _asked(spec: AttentionSpec) -> AttentionSpec:
    if spec.kv_quant_mode not in modes.MODES:
        lack = f"the reference's table has no {spec.kv_quant_mode}"
        raise Unsupported(cells.UNASKABLE.get(spec.kv_quant_mode, lack))
    if isinstance(spec, MLAAttention) and spec.cache_dtype_str is not None:
        raise Unsupported(f"the reference's table has no {spec.cache_dtype_str}")
    return spec


def read_reported(path: Path) -> Reported:
    """The answers in a file of `kvconform device --implementation`.

    Raises ValueError for a file that is none, and OSError where it cannot be read.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        name, answers = str(found["implementation"]), dict(found["cells"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: no stored bytes of an implementation: {error}") from error

    def answer(spec: AttentionSpec, of: str) -> int:
        if spec.kv_quant_mode in cells.UNASKABLE:
            raise Unsupported(cells.UNASKABLE[spec.kv_quant_mode])
        return _number(answers[cells.name_of(spec)][of])

    return Reported(name, lambda spec: answer(spec, "stored"), lambda spec: answer(spec, "page"))


def _number(answer: Any) -> int:
    if isinstance(answer, int):
        return answer
    ((how, why),) = answer.items()
    raise {"refused": Refused, "unsupported": Unsupported, "fell": Fell}[how](why)


def shapes_of(codec: Codec) -> Iterator[HeadShape]:
    """Every shape that a codec is compared at, those that it must refuse among them."""
    if codec.name in ONLY_SHAPES and ONLY_SHAPES[codec.name].value is None:
        yield ONLY_SHAPES[codec.name]
        return
    for key, value in cells.shapes():
        yield HeadShape(key, value)


@lru_cache(maxsize=1 << 15)
def written_bytes(codec: Codec, shape: HeadShape, dtype: torch.dtype) -> int | None:
    """Bytes that packing one row really writes; None where the codec refuses the shape."""
    keys = torch.zeros(1, shape.key, dtype=dtype)
    values = None if shape.value is None else torch.zeros(1, shape.value, dtype=dtype)
    try:
        return codec.pack(keys, values).shape[-1]
    except Refused:
        return None


def check_stored_bytes(codec: Codec, dtype: torch.dtype, reported: Reported) -> Compared:
    """quant/content-formula: codec, reference and implementation store as many bytes."""
    compared = Compared()
    for shape in shapes_of(codec):
        written = written_bytes(codec, shape, dtype)
        try:
            wanted = stored_bytes(codec, shape, dtype)
        except Refused as refusal:
            ensure(written is None, f"{codec.name} stores {shape}, which the reference refuses: {refusal}")
            wanted = None
        if wanted is not None:
            ensure_equal(written, wanted, f"{codec.name}: bytes written for {shape}", "the reference's table")
        _compare(
            f"stored bytes of {codec.name} for {shape}",
            cell_of(codec, shape, dtype),
            written,
            reported,
            compared,
        )
    return compared


def check_pages(codec: Codec, dtype: torch.dtype, reported: Reported) -> Compared:
    """page/content-formula: an implementation's page is heads x states x what the codec writes."""
    compared = Compared()
    for shape in shapes_of(codec):
        written = written_bytes(codec, shape, dtype)
        spec = cell_of(codec, shape, dtype)
        wanted = None if written is None else spec.num_kv_heads * spec.block_size * written
        what = f"page of {spec.num_kv_heads} heads x {spec.block_size} states of {codec.name} for {shape}"
        _compare(what, spec, wanted, replace(reported, stored=reported.page), compared)
    return compared


def _compare(
    what: str, spec: AttentionSpec, wanted: int | None, reported: Reported, compared: Compared
) -> None:
    try:
        got = reported.stored(spec)
    except Unsupported as lack:
        compared.missing[str(lack)] += 1
        return
    except Refused as refusal:
        ensure(
            wanted is None,
            f"{what}: {reported.implementation} refuses ({refusal}), wanted {wanted} = what the codec writes",
        )
        compared.agreed += 1
        return
    if wanted is None:
        # No number to compare with. Whether it should have refused is quant/content-holds-payload.
        compared.beyond += 1
        return
    ensure_equal(got, wanted, f"{what}: {reported.implementation}", "what the codec really writes")
    compared.agreed += 1
