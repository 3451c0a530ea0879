"""What an implementation says that it stores, asked over the protocol.

Of every cell of `kvconform.properties.cells`: the answers go to the checks on real memory as a file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvconform.conformance.process import Fell, ProcessImplementation
from kvconform.properties.cells import DS_MLA, cells, name_of
from kvconform.reference.interface import Refused, Unsupported
from kvconform.reference.modes import pack, packed_head_slots
from kvconform.reference.specs import AttentionSpec

BATCH = 500
"""Questions that are sent at once."""

CONTENT = "state_content_bytes"
"""The field in which a backend publishes what it packs, where an implementation has that."""


def write_answers(
    implementation: ProcessImplementation, address: str, path: Path, progress: Callable[[int], None]
) -> None:
    """Ask for stored bytes and pages of every cell, and write the answers down for the checks.

    ``progress`` is told how many cells are done. Raises BrokenExchange as the implementation does.
    """
    answers: dict[str, dict[str, Any]] = {}
    modes = _modes(implementation)
    for specs in _batches(tuple(cells())):
        lacking = [_lack(implementation, spec, modes) for spec in specs]
        stored = _ask(
            implementation, "stored_bytes", [lack or spec for lack, spec in zip(lacking, specs, strict=True)]
        )
        paged = [_packed(implementation, spec, answer) for spec, answer in zip(specs, stored, strict=True)]
        pages = _ask(implementation, "page_size_bytes", paged)
        for spec, cell, page in zip(specs, stored, pages, strict=True):
            answers[name_of(spec)] = {"stored": _written(cell), "page": _written(page)}
        progress(len(answers))
    path.write_text(json.dumps({"implementation": address, "cells": answers}), encoding="utf-8")


def count_cells() -> int:
    """How many cells there are to be asked of."""
    return sum(1 for _ in cells())


def _batches(known: Sequence[AttentionSpec]) -> Iterator[Sequence[AttentionSpec]]:
    for start in range(0, len(known), BATCH):
        yield known[start : start + BATCH]


def _ask(implementation: ProcessImplementation, operation: str, subjects: Sequence[Any]) -> list[Any]:
    """The answers to an operation about each subject that is a spec; any other stands for itself."""
    questions = [(operation, {"spec": spec}) for spec in subjects if isinstance(spec, AttentionSpec)]
    answers = iter(implementation.ask_all(questions))
    return [next(answers) if isinstance(subject, AttentionSpec) else subject for subject in subjects]


def _modes(implementation: ProcessImplementation) -> frozenset[str] | None:
    """The modes that the implementation names; None where it names none at all."""
    try:
        return frozenset(implementation.quant_modes())
    except (Refused, Unsupported, Fell):
        return None


def _lack(
    implementation: ProcessImplementation, spec: AttentionSpec, modes: frozenset[str] | None
) -> Unsupported | None:
    """What keeps the implementation from saying what a cell stores."""
    if modes is not None and spec.kv_quant_mode not in modes:
        return Unsupported(f"mode {spec.kv_quant_mode}")
    if spec in DS_MLA.values() and CONTENT in implementation.fields(spec.kind):
        return Unsupported("what fp8_ds_mla packs is published by its backend, not by the spec")
    return None


def _packed(implementation: ProcessImplementation, spec: AttentionSpec, stored: Any) -> Any:
    """The spec whose page stores the cell; without a number of bytes, what came in its place.

    Where a backend publishes what it packs, the spec holds what the reference packs, so that a page
    is not wrong for a number of stored bytes that is; and the implementation's own number where
    the reference has none.
    """
    if not isinstance(stored, int):
        return stored
    if CONTENT not in implementation.fields(spec.kind):
        return spec
    with suppress(Refused):
        return pack(spec)
    slots = packed_head_slots(spec)
    content, rest = divmod(stored * spec.num_kv_heads, slots)
    if rest:
        return Unsupported(f"{stored} bytes cannot be shared by {slots // spec.num_kv_heads} head slots")
    return replace(spec, num_head_slots=slots, state_content_bytes=content)


def _written(answer: Any) -> Any:
    if isinstance(answer, Refused):
        return {"refused": str(answer)}
    if isinstance(answer, Unsupported):
        return {"unsupported": str(answer)}
    if isinstance(answer, Fell):
        return {"fell": str(answer)}
    return answer
