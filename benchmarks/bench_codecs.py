"""Pack and unpack of every codec beside a plain copy of the same rows on the same device.

With ``--device cuda`` on a device. The codecs are checkers in double precision, not kernels: the
figure to watch is how many times as long as the copy they take.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import pytest
import torch
from kvconform.gpu_checks import inputs
from kvconform.gpu_checks.codec import Codec
from kvconform.gpu_checks.codecs import CODECS, shape_for


def seconds(action: Callable[[], object], times: int = 10) -> float:
    """Least seconds that one call takes."""
    found = []
    for _ in range(times):
        start = perf_counter()
        action()
        found.append(perf_counter() - start)
    return min(found)


@pytest.mark.parametrize("direction", ["pack", "unpack"])
@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_codec(codec: Codec, direction: str, benchmark: Any, pytestconfig: pytest.Config) -> None:
    device = pytestconfig.getoption("--device", default=None) or "cpu"
    torch.set_num_threads(1)
    shape = shape_for(codec, 128)
    dtype = torch.bfloat16 if torch.bfloat16 in codec.dtypes else codec.dtypes[0]
    keys = inputs.rows("normal", 1 << (12 if device == "cpu" else 18), shape.key, dtype).to(device)
    values = None if shape.value is None else keys.flip(0)
    heads = keys if values is None else torch.cat((keys, values), dim=-1)
    stored = codec.pack(keys, values)

    def settled(action: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            action()
            if device != "cpu":
                torch.cuda.synchronize()

        return run

    convert = (
        (lambda: codec.pack(keys, values)) if direction == "pack" else lambda: codec.unpack(stored, shape)
    )
    copied = seconds(settled(heads.clone))
    benchmark.group = f"codecs: {direction} on {device}"
    benchmark.pedantic(settled(convert), rounds=5, warmup_rounds=1)
    if benchmark.stats is not None:
        once = benchmark.stats.stats.min
        megabytes = heads.numel() * heads.itemsize / 1e6
        benchmark.extra_info["MB/s of heads"] = round(megabytes / once)
        benchmark.extra_info["MB/s of a plain copy"] = round(megabytes / copied)
        benchmark.extra_info["times a plain copy"] = round(once / copied, 1)
