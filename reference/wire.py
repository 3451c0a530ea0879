"""Specs and deployments as plain dictionaries: the form in which they leave this process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from kvconform.reference.deployment import Deployment
from kvconform.reference.specs import KINDS, Spec, UniformType, field_names


def spec_to_wire(spec: Spec) -> dict[str, Any]:
    """Every field under its name, beside ``kind``; layers of a uniform_type as [name, spec] pairs."""
    if isinstance(spec, UniformType):
        layers = [[name, spec_to_wire(layer)] for name, layer in spec.kv_cache_specs]
        return {"kind": spec.kind, "block_size": spec.block_size, "kv_cache_specs": layers}
    wire: dict[str, Any] = {"kind": spec.kind}
    for name in field_names(spec.kind):
        wire[name] = getattr(spec, name)
    return wire


def spec_from_wire(wire: Mapping[str, Any]) -> Spec:
    """The spec of a dictionary as `spec_to_wire` makes it; absent fields have their default.

    Raises ValueError naming an unknown kind or field, or one that is missing.
    """
    values = dict(wire)
    kind = values.pop("kind", None)
    if kind not in KINDS:
        raise ValueError(f"unknown kind {kind!r}")
    unknown = [name for name in values if name not in field_names(kind)]
    if unknown:
        raise ValueError(f"{kind} has no field {unknown[0]!r}")
    if kind == "uniform_type":
        layers = values.get("kv_cache_specs", ())
        values["kv_cache_specs"] = tuple((name, spec_from_wire(layer)) for name, layer in layers)
    for name in ("shapes", "dtypes"):
        if name in values:
            values[name] = tuple(tuple(part) if isinstance(part, list) else part for part in values[name])
    try:
        return KINDS[kind](**values)
    except TypeError as error:
        raise ValueError(f"{kind}: {error}") from None


def deployment_to_wire(deployment: Deployment) -> dict[str, Any]:
    """Every field of the deployment under its name, and the in-flight tokens that follow."""
    wire = {field.name: getattr(deployment, field.name) for field in fields(deployment)}
    wire["in_flight_tokens"] = deployment.in_flight_tokens
    return wire
