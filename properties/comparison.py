"""How two specs differ, in words."""

from __future__ import annotations

from collections.abc import Sequence

from kvconform.reference.specs import Spec, UniformType, field_names


def differences(got: Spec, wanted: Spec, *, but: Sequence[str] = ()) -> str:
    """The fields in which two specs differ as ``field: got .., wanted ..``; empty when equal."""
    if got.kind != wanted.kind:
        return f"kind: got {got.kind}, wanted {wanted.kind}"
    if isinstance(got, UniformType) and isinstance(wanted, UniformType):
        return _layer_differences(got, wanted, but)
    found = []
    for name in field_names(wanted.kind):
        if name not in but and getattr(got, name) != getattr(wanted, name):
            found.append(f"{name}: got {getattr(got, name)}, wanted {getattr(wanted, name)}")
    return "; ".join(found)


def _layer_differences(got: UniformType, wanted: UniformType, but: Sequence[str]) -> str:
    names = [name for name, _ in got.kv_cache_specs], [name for name, _ in wanted.kv_cache_specs]
    if names[0] != names[1]:
        return f"layers: got {names[0]}, wanted {names[1]}"
    found = []
    if "block_size" not in but and got.block_size != wanted.block_size:
        found.append(f"block_size: got {got.block_size}, wanted {wanted.block_size}")
    for name, layer, other in zip(names[0], got.layers(), wanted.layers(), strict=True):
        inside = differences(layer, other, but=but)
        if inside:
            found.append(f"{name}: {inside}")
    return "; ".join(found)
