"""Specs, deployments and configurations as plain dictionaries: the form in which they leave this process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from kvconform.reference.deployment import Deployment
from kvconform.reference.grouping import KVCacheGroupSpec
from kvconform.reference.planning import KVCacheConfig, KVCacheTensor, StridedKVCacheTensor
from kvconform.reference.schedules import Event, Moment, Request, Schedule, Trace
from kvconform.reference.specs import KINDS, AttentionSpec, Spec, UniformType
from kvconform.reference.uniform import third_party


def spec_to_wire(spec: Spec) -> dict[str, Any]:
    """Every field under its name, beside ``kind``; layers of a uniform_type as [name, spec] pairs.

    A third party's kind names the kind whose fields it has as ``base``: empty for the fields that
    every attention kind has.
    """
    if isinstance(spec, UniformType):
        layers = [[name, spec_to_wire(layer)] for name, layer in spec.kv_cache_specs]
        return {"kind": spec.kind, "block_size": spec.block_size, "kv_cache_specs": layers}
    wire: dict[str, Any] = {"kind": spec.kind}
    if spec.kind not in KINDS:
        wire["base"] = type(spec).__mro__[1].kind  # type: ignore[attr-defined]
    for name in _field_names(type(spec)):
        wire[name] = getattr(spec, name)
    return wire


def spec_from_wire(wire: Mapping[str, Any]) -> Spec:
    """The spec of a dictionary as `spec_to_wire` makes it; absent fields have their default.

    Raises ValueError naming an unknown kind or field, or one that is missing.
    """
    values = dict(wire)
    kind = values.pop("kind", None)
    spec_class = KINDS.get(kind) if isinstance(kind, str) else None
    if spec_class is None and isinstance(kind, str) and kind and "base" in values:
        base = values.pop("base")
        if base not in ("", *KINDS):
            raise ValueError(f"unknown base {base!r} of kind {kind!r}")
        spec_class = third_party(kind, KINDS[base] if base else AttentionSpec)
    if spec_class is None:
        raise ValueError(f"unknown kind {kind!r}")
    unknown = [name for name in values if name not in _field_names(spec_class)]
    if unknown:
        raise ValueError(f"{kind} has no field {unknown[0]!r}")
    if kind == "uniform_type":
        layers = values.get("kv_cache_specs", ())
        values["kv_cache_specs"] = tuple((name, spec_from_wire(layer)) for name, layer in layers)
    for name in ("shapes", "dtypes"):
        if name in values:
            values[name] = tuple(tuple(part) if isinstance(part, list) else part for part in values[name])
    try:
        return spec_class(**values)
    except TypeError as error:
        raise ValueError(f"{kind}: {error}") from None


def _field_names(spec_class: type[Spec]) -> tuple[str, ...]:
    if spec_class not in _NAMES:
        _NAMES[spec_class] = tuple(field.name for field in fields(spec_class))
    return _NAMES[spec_class]


_NAMES: dict[type[Spec], tuple[str, ...]] = {}


def deployment_to_wire(deployment: Deployment) -> dict[str, Any]:
    """Every field of the deployment under its name, and the in-flight tokens that follow.

    ``in_flight_tokens`` leaves lookahead slots out: whether to count them is up to who is asked.
    """
    wire = {field.name: getattr(deployment, field.name) for field in fields(deployment)}
    wire["in_flight_tokens"] = deployment.in_flight_tokens
    return wire


def group_to_wire(group: KVCacheGroupSpec) -> dict[str, Any]:
    """The group with its spec as a dictionary."""
    return {
        "layer_names": list(group.layer_names),
        "kv_cache_spec": spec_to_wire(group.kv_cache_spec),
        "is_eagle_group": group.is_eagle_group,
    }


def group_from_wire(wire: Mapping[str, Any]) -> KVCacheGroupSpec:
    """The group of a dictionary as `group_to_wire` makes it. Raises ValueError as `spec_from_wire`."""
    return KVCacheGroupSpec(
        layer_names=tuple(wire["layer_names"]),
        kv_cache_spec=spec_from_wire(wire["kv_cache_spec"]),
        is_eagle_group=wire.get("is_eagle_group", False),
    )


def tensor_to_wire(tensor: KVCacheTensor | StridedKVCacheTensor) -> dict[str, Any]:
    """Every field under its name; which names there are tells the two shapes apart."""
    wire = {field.name: getattr(tensor, field.name) for field in fields(tensor)}
    names = "layers" if isinstance(tensor, StridedKVCacheTensor) else "shared_by"
    return {**wire, names: list(wire[names])}


def tensor_from_wire(wire: Mapping[str, Any]) -> KVCacheTensor | StridedKVCacheTensor:
    """The tensor of a dictionary as `tensor_to_wire` makes it."""
    values = dict(wire)
    if "layers" in values:
        return StridedKVCacheTensor(layers=tuple(values.pop("layers")), **values)
    return KVCacheTensor(shared_by=tuple(values.pop("shared_by")), **values)


def config_to_wire(config: KVCacheConfig) -> dict[str, Any]:
    """The configuration with its tensors and groups as dictionaries."""
    return {
        "num_blocks": config.num_blocks,
        "kv_cache_tensors": [tensor_to_wire(tensor) for tensor in config.kv_cache_tensors],
        "kv_cache_groups": [group_to_wire(group) for group in config.kv_cache_groups],
    }


def config_from_wire(wire: Mapping[str, Any]) -> KVCacheConfig:
    """The configuration of a dictionary as `config_to_wire` makes it."""
    return KVCacheConfig(
        num_blocks=wire["num_blocks"],
        kv_cache_tensors=tuple(tensor_from_wire(tensor) for tensor in wire["kv_cache_tensors"]),
        kv_cache_groups=tuple(group_from_wire(group) for group in wire["kv_cache_groups"]),
    )


def schedule_to_wire(schedule: Schedule) -> dict[str, Any]:
    """The schedule with its requests and events as dictionaries."""
    return {
        "requests": [_plain(request) for request in schedule.requests],
        "events": [_plain(event) for event in schedule.events],
        "prefix_caching": schedule.prefix_caching,
    }


def schedule_from_wire(wire: Mapping[str, Any]) -> Schedule:
    """The schedule of a dictionary as `schedule_to_wire` makes it."""
    return Schedule(
        requests=tuple(Request(**request) for request in wire["requests"]),
        events=tuple(Event(**event) for event in wire["events"]),
        prefix_caching=wire.get("prefix_caching", False),
    )


def trace_to_wire(trace: Trace) -> dict[str, Any]:
    """The trace with its moments as dictionaries, tables as lists in lists."""
    return {**_plain(trace), "moments": [_plain(moment) for moment in trace.moments]}


def trace_from_wire(wire: Mapping[str, Any]) -> Trace:
    """The trace of a dictionary as `trace_to_wire` makes it."""
    values = {name: _tuples(value) for name, value in wire.items() if name != "moments"}
    moments = (
        Moment(**{name: _tuples(value) for name, value in moment.items()}) for moment in wire["moments"]
    )
    return Trace(moments=tuple(moments), **values)


def _plain(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value
