"""A device beside the host, without one: tensors on it refuse to meet the host's, as a GPU's would.

The bytes are the host's. What is simulated is where a tensor lies: one that is made with the
device's name, or from another that lies there, lies there; an operation on both raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from kvconform.gpu_checks import rotation
from kvconform.gpu_checks.memory import HostMemory
from torch import Tensor
from torch.overrides import TorchFunctionMode

DEVICE = torch.device("cuda", 0)
HOST = torch.device("cpu")

BRINGS_HOME = (Tensor.cpu,)
"""What makes a tensor of the host out of one of the device."""


class OnDevice(Tensor):
    """A tensor that lies on the device."""

    device = DEVICE  # type: ignore[assignment]


class Simulated(TorchFunctionMode):
    """Keeps host and device apart."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        met = list(tensors((*args, *named.values())))
        asked = [one for one in args if isinstance(one, torch.device)]
        args = tuple(HOST if isinstance(argument, torch.device) else argument for argument in args)
        if named.get("device") is not None:
            asked.append(torch.device(named["device"]))
            named["device"] = HOST
        if asked:
            there = asked[0] == DEVICE
        else:
            there = any(isinstance(one, OnDevice) for one in met)
            # A number of the host goes along with a launch; anything longer does not.
            if there and any(one.dim() > 0 for one in met if not isinstance(one, OnDevice)):
                raise RuntimeError(
                    f"{getattr(func, '__name__', func)}: a tensor of the device and one of the host"
                )
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **named)
        return _label(result, OnDevice if there and func not in BRINGS_HOME else Tensor)


def tensors(values: Any) -> Iterator[Tensor]:
    """The tensors among values, inside of sequences too."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors(value)


def _label(result: Any, kind: type[Tensor]) -> Any:
    if isinstance(result, Tensor):
        return result if type(result) is kind else result.as_subclass(kind)
    if isinstance(result, list | tuple) and any(isinstance(one, Tensor) for one in result):
        return tuple(_label(one, kind) for one in result)
    return result


class SimulatedMemory(HostMemory):
    """The host's memory as the device's."""

    device = DEVICE

    def allocate(self, size: int) -> Tensor:
        return super().allocate(size).as_subclass(OnDevice)


@contextmanager
def simulated() -> Iterator[SimulatedMemory]:
    """A device for as long as the block lasts."""
    try:
        with Simulated():
            yield SimulatedMemory()
    finally:
        # What is kept for a device by its name would be met by a real one.
        rotation._signs_on.cache_clear()
