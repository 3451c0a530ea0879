"""Arguments and results of operations as JSON values, with their types and schemas.

The types are made from the operations of `Implementation`, so that there is one place where an
operation's parameters and answer are written. Integers of 2^53 and beyond are decimal strings,
since a JSON reader that keeps numbers as doubles would round them.
"""

from __future__ import annotations

import operator
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import msgspec
from kvconform.reference.deployment import Deployment
from kvconform.reference.grouping import KVCacheGroupSpec
from kvconform.reference.interface import Implementation
from kvconform.reference.planning import KVCacheConfig, KVCacheTensor, StridedKVCacheTensor
from kvconform.reference.schedules import Schedule, Trace
from kvconform.reference.specs import KINDS, AttentionSpec, Spec
from kvconform.reference.uniform import third_party
from kvconform.reference.wire import (
    config_to_wire,
    deployment_to_wire,
    group_to_wire,
    schedule_to_wire,
    spec_to_wire,
    tensor_to_wire,
    trace_to_wire,
)

FIRST_STRING = 1 << 53
"""The least magnitude of an integer that is written as a decimal string."""


class Integer(int):
    """A whole number, read from a JSON integer or a decimal string."""


class Ratio:
    """Holds a number of requests, read from a JSON number or a string ``numerator/denominator``."""

    def __init__(self, value: Fraction | float) -> None:
        self.value = value


class AnySpec:
    """Holds a spec of whatever kind its dictionary names."""

    def __init__(self, value: Spec) -> None:
        self.value = value


class AnyTensor:
    """Holds a tensor of whichever shape its dictionary has."""

    def __init__(self, value: KVCacheTensor | StridedKVCacheTensor) -> None:
        self.value = value


SpecFilter = Callable[[Spec], dict[str, Any]]


def to_wire(value: Any, spec_form: SpecFilter = spec_to_wire) -> Any:
    """A value of an operation as JSON values; ``spec_form`` says how a spec becomes a dictionary.

    Raises TypeError for a value that no operation has.
    """
    kind = type(value)
    if kind is int:
        return value if -FIRST_STRING < value < FIRST_STRING else str(value)
    if value is None or kind in (bool, str, float):
        return value
    if isinstance(value, Spec):
        wire = spec_form(value)
        for name, part in wire.items():
            # Most fields stay as they are, and a law may ask thousands of times.
            if type(part) not in PLAIN and not (type(part) is int and -FIRST_STRING < part < FIRST_STRING):
                wire[name] = to_wire(part, spec_form)
        return wire
    if isinstance(value, tuple | list):
        return [to_wire(part, spec_form) for part in value]
    if isinstance(value, Mapping):
        return {str(name): to_wire(part, spec_form) for name, part in value.items()}
    if isinstance(value, Fraction):
        return str(value)
    for data_class, form in FORMS.items():
        if isinstance(value, data_class):
            return to_wire(form(value), spec_form)
    if isinstance(value, bool | str):
        return value
    if hasattr(value, "__index__"):
        return to_wire(int(operator.index(value)))
    raise TypeError(f"a {kind.__name__} is no value of an operation")


FORMS: dict[type, Callable[[Any], dict[str, Any]]] = {
    Deployment: deployment_to_wire,
    KVCacheConfig: config_to_wire,
    KVCacheGroupSpec: group_to_wire,
    KVCacheTensor: tensor_to_wire,
    StridedKVCacheTensor: tensor_to_wire,
    Schedule: schedule_to_wire,
    Trace: trace_to_wire,
}


def read_arguments(operation: str, wire: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an operation by name. Raises ValueError saying what is wrong and where."""
    struct = argument_type(operation)
    return _fields(_convert(wire, struct))


def read_argument(operation: str, name: str, wire: Any) -> Any:
    """One argument of an operation. Raises ValueError saying what is wrong and where."""
    if name not in parameters(operation):
        raise ValueError(f"{operation} has no parameter {name!r}")
    return _build(_convert(wire, wire_type(_hints(operation)[name])))


def read_result(operation: str, wire: Any) -> Any:
    """The answer to an operation. Raises ValueError saying what is wrong and where."""
    wanted = result_type(operation)
    if wanted is Integer and type(wire) is int and -FIRST_STRING < wire < FIRST_STRING:
        return wire
    return _build(_convert(wire, wanted))


def _convert(wire: Any, wanted: Any) -> Any:
    try:
        return msgspec.convert(wire, wanted, dec_hook=_decode)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None


def _decode(wanted: type, wire: Any) -> Any:
    if wanted is Integer:
        return Integer(_integer(wire))
    if wanted is AnySpec:
        return AnySpec(_spec(wire))
    if wanted is AnyTensor:
        shapes = StridedKVCacheTensor if isinstance(wire, dict) and "layers" in wire else KVCacheTensor
        return AnyTensor(_build(_convert(wire, struct_of(shapes))))
    assert wanted is Ratio
    if type(wire) in (int, float):
        return Ratio(wire)
    try:
        return Ratio(Fraction(wire) if isinstance(wire, str) else _refuse("a number", wire))
    except (ValueError, ZeroDivisionError):
        return _refuse("a number", wire)


def _integer(wire: Any) -> int:
    if type(wire) is int:
        if -FIRST_STRING <= wire <= FIRST_STRING:
            return wire
        raise ValueError(f"wanted integers beyond 2^53 as decimal strings, got the number {wire}")
    digits = wire[1:] if isinstance(wire, str) and wire.startswith("-") else wire
    # Only ASCII digits, and no more than Python itself is willing to read.
    if isinstance(digits, str) and digits.isascii() and digits.isdecimal() and len(digits) <= 4000:
        return int(wire)
    return int(_refuse("an integer", wire))


def _refuse(wanted: str, wire: Any) -> Any:
    shown = repr(wire)
    raise ValueError(f"wanted {wanted}, got {shown if len(shown) < 60 else shown[:57] + '...'}")


def _spec(wire: Any) -> Spec:
    kind: Any = wire.get("kind") if isinstance(wire, dict) else None
    if not isinstance(kind, str):
        _refuse("a spec with its kind", wire)
    if "base" not in wire:
        if kind not in KINDS:
            raise ValueError(f"unknown kind {kind!r}")
        return KINDS[kind](**_fields(_convert(wire, struct_of(KINDS[kind]))))
    base = wire["base"]
    if base != "" and base not in KINDS:
        raise ValueError(f"unknown base {base!r} of kind {kind!r}")
    base_class = KINDS[base] if base else AttentionSpec
    own = {name: value for name, value in wire.items() if name not in ("kind", "base")}
    return third_party(kind, base_class)(**_fields(_convert(own, struct_of(base_class))))


def _fields(struct: msgspec.Struct) -> dict[str, Any]:
    values = msgspec.structs.asdict(struct)
    for name, value in values.items():
        if type(value) is Integer:
            values[name] = int(value)
        elif type(value) not in PLAIN:
            values[name] = _build(value)
    values.pop("in_flight_tokens", None)
    return values


PLAIN = frozenset((str, bool, types.NoneType))


def _build(value: Any) -> Any:
    """What was converted, as the values that operations have."""
    if type(value) is Integer:
        return int(value)
    if isinstance(value, AnySpec | AnyTensor | Ratio):
        return value.value
    if isinstance(value, msgspec.Struct):
        return MADE[type(value)](**_fields(value))
    if isinstance(value, tuple):
        return tuple(map(_build, value))
    if isinstance(value, dict):
        return {name: _build(part) for name, part in value.items()}
    return value


MADE: dict[type, Callable[..., Any]] = {}
"""The dataclass of the reference that each struct of this module is the wire type of."""


_STRUCTS: dict[Any, type[msgspec.Struct]] = {}


def struct_of(data_class: Any) -> type[msgspec.Struct]:
    """The wire type of a dataclass of the reference."""
    if data_class not in _STRUCTS:
        _STRUCTS[data_class] = _make_struct(data_class)
    return _STRUCTS[data_class]


def _make_struct(data_class: Any) -> type[msgspec.Struct]:
    hints = typing.get_type_hints(data_class)
    members: list[Any] = []
    for field in fields(data_class):
        wire = wire_type(hints[field.name])
        members.append((field.name, wire) if field.default is MISSING else (field.name, wire, field.default))
    options: dict[str, Any] = {}
    if issubclass(data_class, Spec) and data_class.kind:
        options = {"tag_field": "kind", "tag": data_class.kind}
    if data_class is Deployment:
        # Derived, and sent all the same, so that not every adapter multiplies for itself.
        members.append(("in_flight_tokens", Integer | msgspec.UnsetType, msgspec.UNSET))
    struct = msgspec.defstruct(
        data_class.__name__, members, kw_only=True, frozen=True, forbid_unknown_fields=True, **options
    )
    struct.__doc__ = data_class.__doc__
    MADE[struct] = data_class
    return struct


def wire_type(annotation: Any) -> Any:
    """The type on the wire of what an operation or a dataclass of the reference is annotated with."""
    if annotation is int:
        return Integer
    if annotation is Spec:
        return AnySpec
    if annotation in (bool, str, types.NoneType):
        return annotation
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (types.UnionType, typing.Union):
        if set(parts) == {Fraction, float}:
            return Ratio
        if set(parts) == {KVCacheTensor, StridedKVCacheTensor}:
            return AnyTensor
        return typing.Union[tuple(wire_type(part) for part in parts)]  # noqa: UP007 (made at run time)
    if origin is tuple and parts[-1] is not Ellipsis:
        return tuple[tuple(wire_type(part) for part in parts)]  # type: ignore[misc]
    if origin in (tuple, Sequence):
        return tuple[wire_type(parts[0]), ...]  # type: ignore[misc]
    if origin is Mapping:
        return dict[str, wire_type(parts[1])]  # type: ignore[misc]
    assert is_dataclass(annotation), annotation
    return struct_of(annotation)


@cache
def argument_type(operation: str) -> type[msgspec.Struct]:
    """The arguments of an operation, by the names of its parameters."""
    method = getattr(Implementation, operation)
    defaults = dict(zip(reversed(parameters(operation)), reversed(method.__defaults__ or ()), strict=False))
    members: list[Any] = []
    for name in parameters(operation):
        wire = wire_type(_hints(operation)[name])
        members.append((name, wire, defaults[name]) if name in defaults else (name, wire))
    return msgspec.defstruct(
        f"arguments.{operation}", members, kw_only=True, frozen=True, forbid_unknown_fields=True
    )


@cache
def result_type(operation: str) -> Any:
    """The type on the wire of an operation's answer."""
    return wire_type(_hints(operation)["return"])


@cache
def parameters(operation: str) -> tuple[str, ...]:
    """The names of an operation's parameters, in order."""
    code = getattr(Implementation, operation).__code__
    names: tuple[str, ...] = code.co_varnames[1 : code.co_argcount]
    return names


_NAMED = (Fraction, Deployment, KVCacheGroupSpec, KVCacheConfig, Schedule, Spec, Trace)


@cache
def _hints(operation: str) -> dict[str, Any]:
    # The interface imports these for the type checker only.
    names = {known.__name__: known for known in _NAMED}
    return typing.get_type_hints(getattr(Implementation, operation), localns=names)
