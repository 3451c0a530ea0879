"""How much one run does: three named amounts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Profile:
    """`examples` are the inputs tried per law and kind; one input may take `seconds_per_run`."""

    name: str
    examples: int
    seconds_per_run: float


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("quick", examples=8, seconds_per_run=2.0),
        Profile("gate", examples=120, seconds_per_run=5.0),
        Profile("deep", examples=2000, seconds_per_run=20.0),
    )
}
"""Every profile by its name: a first look, what guards a merge, a long campaign."""
