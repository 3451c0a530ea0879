"""The messages by which an implementation in any language is asked.

Each is one line of JSON. A command goes to the process's standard input, and what it says comes
back from its standard output: one line for ``start``, one for each question of ``ask`` and
``batch``, in their order, and none for ``stop``. Neither the expected answer nor the law that asks
is ever sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, TypeVar

import msgspec
from kvconform.conformance.declarations import BadDeclaration, check_declarations
from kvconform.conformance.values import (
    FIRST_STRING,
    AnySpec,
    AnyTensor,
    Integer,
    Ratio,
    argument_type,
    result_type,
    struct_of,
)
from kvconform.reference.interface import OPERATIONS
from kvconform.reference.planning import KVCacheTensor, StridedKVCacheTensor
from kvconform.reference.specs import KINDS

Message = TypeVar("Message")

VERSION = 1
"""Raised when an adapter written for the version before could misunderstand."""


class ProtocolError(Exception):
    """A line is no message of the protocol, or not the one that was due; says why."""


class Start(msgspec.Struct, frozen=True, tag_field="command", tag="start"):
    """Begins: the version that kvconform speaks, to be answered with `Capabilities`."""

    protocol: int
    kvconform: str


class Question(msgspec.Struct, frozen=True):
    """One operation and its arguments by name; the reply has the same ``id``."""

    id: int
    operation: str
    arguments: dict[str, Any]


class Ask(Question, frozen=True, tag_field="command", tag="ask"):
    """One question."""


class Batch(msgspec.Struct, frozen=True, tag_field="command", tag="batch"):
    """Several questions, answered in order with one line each."""

    asks: tuple[Question, ...]


class Stop(msgspec.Struct, frozen=True, tag_field="command", tag="stop"):
    """Ends: the process exits, and so it does when its standard input ends."""


Command = Start | Ask | Batch | Stop


class Capabilities(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answer to `Start`: the version that the adapter speaks, and what can be asked.

    `kinds` are the fields of each kind that the implementation has; a spec sent has no others.
    `revisions` name the formulas that it computes as an earlier release did, and `locations` say
    where an operation is defined, as ``file:line``, for all kinds or each.
    """

    protocol: int
    name: str
    kinds: dict[str, tuple[str, ...]]
    operations: tuple[str, ...]
    version: str = ""
    revisions: tuple[str, ...] = ()
    locations: dict[str, str | dict[str, str]] = {}


class Result(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The answer. `changed` holds arguments that the implementation changed, as they are now."""

    id: int
    result: Any
    changed: dict[str, Any] = {}


class Refusal(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The implementation declines the input and says why.

    `documented` is false where it fell over the input rather than refuse it by a check of its own.
    """

    id: int
    refused: str
    documented: bool = True


class Lack(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The implementation has no such operation, kind, field or mode: names what is missing."""

    id: int
    unsupported: str


class Failure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The implementation or its adapter fell over the question and can be asked on."""

    id: int
    error: str


class Unready(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer to `Start` of an adapter that cannot begin: says why."""

    error: str


Reply = Result | Refusal | Lack | Failure

OUTCOMES: dict[str, type[Reply]] = {
    "result": Result,
    "refused": Refusal,
    "unsupported": Lack,
    "error": Failure,
}
"""By the one of these names that a reply has."""

_encoder = msgspec.json.Encoder()
_commands = msgspec.json.Decoder(Command)


def write(message: msgspec.Struct) -> bytes:
    """The message as a line."""
    return _encoder.encode(message) + b"\n"


def read_command(line: bytes) -> Command:
    """The command of a line. Raises ProtocolError."""
    try:
        return _commands.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(f"no command: {error}") from None


def read_capabilities(line: bytes) -> Capabilities:
    """What a process answered to `Start`.

    Raises ProtocolError for what is no such answer, for another version of the protocol, and for
    names of kinds, fields, operations and revisions that there are not: a misspelt one would never
    be asked, or be measured against what it does not follow.
    """
    said = _read_object(line)
    if "error" in said:
        raise ProtocolError(f"it cannot begin: {_convert(said, Unready).error}")
    if said.get("protocol") != VERSION:
        raise ProtocolError(f"it speaks protocol {said.get('protocol')}, and kvconform {VERSION}")
    capabilities = _convert(said, Capabilities)
    try:
        check_declarations(
            capabilities.kinds,
            (*capabilities.operations, *capabilities.locations),
            capabilities.revisions,
        )
    except BadDeclaration as error:
        raise ProtocolError(str(error)) from error
    return capabilities


def read_reply(line: bytes) -> Reply:
    """What a process answered to a question. Raises ProtocolError."""
    said = _read_object(line)
    outcomes = [name for name in OUTCOMES if name in said]
    if len(outcomes) != 1:
        found = " and ".join(outcomes) or "none"
        raise ProtocolError(f"no reply: wanted one of {', '.join(OUTCOMES)}, got {found}")
    return _convert(said, OUTCOMES[outcomes[0]])


def _read_object(line: bytes) -> dict[str, Any]:
    try:
        said = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"no JSON: {error}") from None
    if not isinstance(said, dict):
        raise ProtocolError("no JSON object")
    return said


def _convert(said: dict[str, Any], wanted: type[Message]) -> Message:
    try:
        return msgspec.convert(said, wanted)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"no {wanted.__name__.lower()}: {error}") from None


def schema() -> dict[str, Any]:
    """A JSON Schema of every message: of any line, and of each by its name in ``$defs``.

    Beside the messages there are ``ask.OPERATION`` and ``result.OPERATION``, which also say what
    the arguments and the answer of the operation are.
    """
    messages = (Start, Question, Ask, Batch, Stop, Capabilities, Unready, Result, Refusal, Lack, Failure)
    arguments = [argument_type(operation) for operation in OPERATIONS]
    structs = [struct_of(shape) for shape in (*KINDS.values(), KVCacheTensor, StridedKVCacheTensor)]
    results = [_result_struct(operation) for operation in OPERATIONS]
    _, defs = msgspec.json.schema_components(
        (*messages, *arguments, *structs, *results), schema_hook=_hook, ref_template="#/$defs/{name}"
    )
    for operation in OPERATIONS:
        properties = {"operation": {"const": operation}, "arguments": _ref(f"arguments.{operation}")}
        defs[f"ask.{operation}"] = {"allOf": [_ref("Ask"), {"properties": properties}]}
    defs["Integer"] = {
        "description": "A whole number; of magnitude 2^53 or more as a decimal string.",
        "anyOf": [
            {"type": "integer", "exclusiveMinimum": -FIRST_STRING, "exclusiveMaximum": FIRST_STRING},
            {"type": "string", "pattern": "^-?[0-9]{16,}$"},
        ],
    }
    defs["Ratio"] = {
        "description": "A number, or numerator/denominator as a string.",
        "anyOf": [{"type": "number"}, {"type": "string", "pattern": "^-?[0-9]+(/[0-9]+)?$"}],
    }
    defs["Tensor"] = _any_of(("KVCacheTensor", "StridedKVCacheTensor"))
    defs["ThirdPartySpec"] = {
        "description": "A spec of a registered kind, with the fields of its base (empty: any attention).",
        "type": "object",
        "properties": {
            "kind": {"type": "string", "not": {"enum": [*KINDS]}},
            "base": {"enum": ["", *KINDS]},
        },
        "required": ["kind", "base", "block_size"],
    }
    defs["Spec"] = _any_of((*(shape.__name__ for shape in KINDS.values()), "ThirdPartySpec"))
    lines = [message.__name__ for message in messages if message is not Question]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"kvconform protocol {VERSION}: one line of standard input or output",
        **_any_of(lines),
        "$defs": dict(sorted(defs.items())),
    }


def _result_struct(operation: str) -> type[msgspec.Struct]:
    members: list[Any] = [("id", int), ("result", result_type(operation)), ("changed", dict[str, Any], {})]
    return msgspec.defstruct(f"result.{operation}", members, forbid_unknown_fields=True)


def _any_of(names: Iterable[str]) -> dict[str, Any]:
    return {"anyOf": [_ref(name) for name in names]}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/$defs/{name}"}


@cache
def _hook(wanted: type) -> dict[str, str]:
    names = {Integer: "Integer", Ratio: "Ratio", AnySpec: "Spec", AnyTensor: "Tensor"}
    return _ref(names[wanted])
