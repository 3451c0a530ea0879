"""A plugin of pytest that makes the checks on real memory go wrong, as KVCONFORM_TEST_FAULT names it.

Named in PYTEST_PLUGINS, it reaches the process that `kvconform device` runs the checks in. The codec
int8_per_token_head has the fault, every other one stays as it is.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def short(stored: Tensor) -> Tensor:
    """A byte short."""
    return stored[:, :-1]


def fallen(stored: Tensor) -> Tensor:
    """Falls over."""
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def killed(stored: Tensor) -> Tensor:
    """Takes the process down."""
    os.kill(os.getpid(), signal.SIGSEGV)
    return stored


def slow(stored: Tensor) -> Tensor:
    """Says that it has begun, and does not come to an end."""
    Path(os.environ["KVCONFORM_TEST_BEGUN"]).touch()
    time.sleep(600)
    return stored


FAULTS: dict[str, Callable[[Tensor], Tensor]] = {
    "short": short,
    "fallen": fallen,
    "killed": killed,
    "slow": slow,
}


def spoil(name: str) -> None:
    """Give the codec the fault of that name."""
    from kvconform.gpu_checks.codec import Codec
    from kvconform.gpu_checks.codecs import CODECS

    fault = FAULTS[name]

    @dataclass(frozen=True)
    class Spoilt(Codec):
        """Packs with the fault."""

        def pack(self, keys: Tensor, values: Tensor | None) -> Tensor:
            return fault(super().pack(keys, values))

    codec = CODECS["int8_per_token_head"]
    CODECS[codec.name] = Spoilt(**{field: getattr(codec, field) for field in Codec.__dataclass_fields__})


if "KVCONFORM_TEST_FAULT" in os.environ:
    spoil(os.environ["KVCONFORM_TEST_FAULT"])
