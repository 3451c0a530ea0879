"""The laws, one file per area of the catalogue; planning, the largest, has four."""

from kvconform.properties.laws import (
    admission,
    bound,
    hold,
    merge,
    page,
    plan_groups,
    plan_layout,
    plan_memory,
    plan_views,
    quant,
    resize,
    uniform,
    zero,
)

__all__ = [
    "admission",
    "bound",
    "hold",
    "merge",
    "page",
    "plan_groups",
    "plan_layout",
    "plan_memory",
    "plan_views",
    "quant",
    "resize",
    "uniform",
    "zero",
]
