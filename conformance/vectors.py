"""Test vectors: cases of the laws with the reference's answers, for use without kvconform."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from kvconform.conformance.cases import BadCase, Case, Drawn, ReplayGiven
from kvconform.conformance.protocol import schema as protocol_schema
from kvconform.conformance.recording import Call, record
from kvconform.conformance.report.document import Destination
from kvconform.conformance.selection import Pair
from kvconform.conformance.values import to_wire
from kvconform.properties.given import Rejected
from kvconform.properties.law import NO_KIND, Law, Violation
from kvconform.properties.sampling import Fault, run_law, sample
from kvconform.reference.interface import OPERATIONS, Refused, Unsupported
from kvconform.reference.plain import Plain

FORMAT = 1

PER_PAIR = 3
"""Vectors of one law and kind at most."""

DRAWS = 24
"""Runs that the vectors of one law and kind are taken from."""

LARGEST = 1 << 16
"""Bytes of a vector at most: whole models of hundreds of layers are left to `kvconform run`."""

OF_PYTHON = ("merge_without_asserts", "merge_side_effects", "register_kv_cache_spec")
"""Operations that only make sense for an implementation in Python."""


class VectorsError(Exception):
    """The vectors cannot be written there; one line says why."""


def make_vectors(
    pairs: Sequence[Pair], *, version: str, any_language: bool, progress: Callable[[int], None] | None = None
) -> dict[str, bytes]:
    """Every file of a directory of vectors, by its path within.

    The same version gives the same bytes. With `any_language`, laws that ask what only an
    implementation in Python can be asked are left out. `progress` is told how many pairs are done.
    """
    files: dict[str, bytes] = {}
    of_law: dict[str, list[dict[str, Any]]] = {}
    laws = {law.id: law for law, _ in pairs}
    for done, (law, kind) in enumerate(pairs, 1):
        if not (any_language and set(law.needs) & set(OF_PYTHON)):
            found = of_law.setdefault(law.id, [])
            found.extend(_vectors(law, kind))
        if progress is not None:
            progress(done)
    listed = []
    for id, vectors in of_law.items():
        if vectors:
            files[f"{id}.json"] = _encode(_describe(laws[id], vectors))
            listed.append({"law": id, "path": f"{id}.json", "vectors": len(vectors)})
    files["schema.json"] = _encode(schema())
    files["README.md"] = README.encode()
    index = {"kvconform_vectors": FORMAT, "kvconform": version, "laws": listed, "files": sorted(files)}
    return {"index.json": _encode(index), **files}


def schema() -> dict[str, Any]:
    """A JSON Schema of the file of one law; arguments and answers are those of the protocol."""
    definitions = protocol_schema()["$defs"]
    calls = []
    for operation in OPERATIONS:
        answer = {"$ref": f"#/$defs/result.{operation}/properties/result"}
        calls.append(
            {
                "type": "object",
                "properties": {
                    "operation": {"const": operation},
                    "arguments": {"$ref": f"#/$defs/arguments.{operation}"},
                    "answer": answer,
                    "refuse": {"const": True},
                    "because": {"type": "string"},
                },
                "required": ["operation", "arguments"],
                "oneOf": [{"required": ["answer"]}, {"required": ["refuse"]}],
                "additionalProperties": False,
            }
        )
    text = {"type": "string"}
    vector = {
        "type": "object",
        "properties": {
            "id": text,
            "kind": {"type": ["string", "null"]},
            "calls": {"type": "array", "minItems": 1, "items": {"anyOf": calls}},
            "case": text,
        },
        "required": ["id", "kind", "calls", "case"],
        "additionalProperties": False,
    }
    head = {
        "kvconform_vectors": {"const": FORMAT},
        "law": text,
        "severity": text,
        "must_hold": text,
        "why": text,
        "reports": {"type": "array", "items": text},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The test vectors of one law",
        "type": "object",
        "properties": {**head, "vectors": {"type": "array", "minItems": 1, "items": vector}},
        "required": [*head, "vectors"],
        "additionalProperties": False,
        "$defs": definitions,
    }


def check_directory(path: Path) -> None:
    """Raise VectorsError unless vectors may be written there: nothing is lost that is not theirs."""
    if not path.exists():
        if not path.parent.is_dir():
            raise VectorsError(f"{path}: there is no directory {path.parent}")
        return
    if not path.is_dir():
        raise VectorsError(f"{path}: is no directory")
    held = {str(file.relative_to(path)) for file in path.rglob("*") if not file.is_dir()}
    if held and not held <= {"index.json", *_listed(path)}:
        other = min(held - {"index.json", *_listed(path)})
        raise VectorsError(
            f"{path}: holds {other}, which is none of the vectors; name a directory for them alone"
        )


def write_directory(path: Path, files: Mapping[str, bytes]) -> None:
    """Put all files in place, each whole, and remove old vectors. Raises OSError."""
    old = set(_listed(path)) - set(files)
    # An index of all that may be there, so that what is interrupted can be written again.
    index = _Index(kvconform_vectors=FORMAT, files=tuple(sorted({*files, *old})))
    _write(path / "index.json", msgspec.json.encode(index))
    for name, content in files.items():
        if name != "index.json":
            _write(path / name, content)
    for name in old:
        (path / name).unlink(missing_ok=True)
        folder = (path / name).parent
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    _write(path / "index.json", files["index.json"])


def _write(place: Path, content: bytes) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    destination = Destination(place)
    try:
        destination.write(content)
    finally:
        destination.release()


def _listed(path: Path) -> list[str]:
    """The files that the index of a directory lists; none where it is no index of ours."""
    try:
        index = msgspec.json.decode((path / "index.json").read_bytes(), type=_Index)
    except (OSError, msgspec.DecodeError):
        return []
    return list(index.files)


class _Index(msgspec.Struct):
    kvconform_vectors: int
    files: tuple[str, ...]


def _vectors(law: Law, kind: str) -> list[dict[str, Any]]:
    """The first different runs of the law that the reference answers, smallest first."""
    cases: list[dict[str, Drawn]] = []
    reference = Plain()
    if law.missing(reference, kind) is not None:
        return []
    sample(law, reference, kind, examples=DRAWS, seed_number=0, trace=cases.append)
    vectors: dict[str, dict[str, Any]] = {}
    for case in cases:
        calls: list[Call] = []
        # A fresh one, since a kind that is registered stays so.
        implementation = Plain()
        try:
            run_law(law, record(implementation, calls), ReplayGiven(implementation, kind, case))
        except (Violation, Unsupported, Rejected, Fault, BadCase):
            continue
        asked = [_call(call) for call in calls]
        key = hashlib.sha256(msgspec.json.encode(asked, order="deterministic")).hexdigest()[:10]
        vector = {
            "id": "/".join((law.id, *([] if kind == NO_KIND else [kind]), key)),
            "kind": None if kind == NO_KIND else kind,
            "calls": asked,
            # As text, since a JSON reader that keeps numbers as doubles would round what it draws.
            "case": msgspec.json.encode(Case(law.id, kind, case)).decode(),
        }
        if asked and len(msgspec.json.encode(vector)) <= LARGEST:
            vectors.setdefault(key, vector)
        if len(vectors) == PER_PAIR:
            break
    return list(vectors.values())


def _call(call: Call) -> dict[str, Any]:
    asked = {
        "operation": call.operation,
        "arguments": {name: to_wire(value) for name, value in call.arguments.items() if value is not None},
    }
    if isinstance(call.answer, Refused):
        return {**asked, "refuse": True, "because": str(call.answer)}
    return {**asked, "answer": to_wire(call.answer)}


def _describe(law: Law, vectors: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "kvconform_vectors": FORMAT,
        "law": law.id,
        "severity": law.severity,
        "must_hold": law.sentence,
        "why": law.explanation.partition("\n\n")[2],
        "reports": list(law.reports),
        "vectors": vectors,
    }


def _encode(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


README = """\
# Test vectors of kvconform

Written by `kvconform vectors`; nothing here needs kvconform to be used. `index.json` lists one file
per law, and `schema.json` says what is in such a file:

- `law`, `severity`, `must_hold` and `why`: what must hold, and what goes wrong for a user otherwise.
- `vectors`: each has a stable `id`, the `kind` of spec that it is about (null for none), and `calls`.

Make the calls of one vector in their order, on an implementation that has seen no others. Each names
an `operation`, its `arguments`, and what the reference answers: an `answer`, or `"refuse": true` where
the input must be declined (`because` says in the reference's words why; yours may differ).

Sizes are bytes, lengths tokens. An integer of magnitude 2^53 or more is a string of its decimal
digits, a ratio a string `numerator/denominator`. A field that an implementation does not have may be
left out where it has its default; else the vector is not about that implementation.

An answer that differs is not what the reference computes; of a trace, which of the free blocks are
taken is up to the implementation. Whether it breaks the law, which may allow
several answers, is told by `kvconform replay IMPLEMENTATION CASE` with the vector's `case`.
"""
