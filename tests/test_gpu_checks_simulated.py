"""The checks run unchanged on a device whose tensors cannot meet the host's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

from kvconform.gpu_checks import far, inputs, views  # noqa: E402
from kvconform.gpu_checks.allocation import check_allocation  # noqa: E402
from kvconform.gpu_checks.codec import Codec  # noqa: E402
from kvconform.gpu_checks.codecs import CODECS, shape_for  # noqa: E402
from kvconform.gpu_checks.memory import Memory  # noqa: E402
from kvconform.gpu_checks.plans import collection  # noqa: E402
from kvconform.gpu_checks.roundtrip import check_bytes, check_error, check_same_bytes  # noqa: E402
from kvconform.reference.planning import KVCacheConfig  # noqa: E402
from simulated_device import DEVICE, OnDevice, simulated  # noqa: E402
from torch import Tensor  # noqa: E402

PLANS = collection()


@pytest.fixture
def memory() -> Iterator[Memory]:
    """A simulated device's."""
    with simulated() as found:
        yield found


def test_tensors_of_host_and_device_do_not_meet(memory: Memory) -> None:
    here, there = torch.ones(3), torch.ones(3, device=memory.device)
    assert there.device == DEVICE
    assert isinstance(here.to(memory.device) + there, OnDevice)
    assert isinstance(memory.allocate(4).to(torch.int64) + 1, OnDevice)
    assert not isinstance(there.cpu() + here, OnDevice)
    for meet in (lambda: here + there, lambda: torch.cat((there, here)), lambda: there[here.long()]):
        with pytest.raises(RuntimeError, match="a tensor of the device and one of the host"):
            meet()


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_a_codec_stays_on_the_device(codec: Codec, memory: Memory) -> None:
    """And packs the bytes of the host there."""
    shape = shape_for(codec, 64)
    dtype = codec.dtypes[-1]
    made = torch.cat((inputs.finite_rows(2, shape.key, dtype), inputs.special_rows(shape.key, dtype)))
    keys = made.to(memory.device)
    values = None if shape.value is None else keys.flip(0)
    for fitted in (codec, codec.calibrated(keys, values)):
        packed = fitted.pack(keys, values)
        assert isinstance(packed, OnDevice)
        check_bytes(fitted, keys, values)
        check_error(fitted, keys, values)
        here = fitted.pack(made, None if values is None else made.flip(0))
        assert not isinstance(here, OnDevice)
        check_same_bytes(codec.name, packed, here)


@pytest.mark.parametrize("config", PLANS.values(), ids=PLANS)
def test_plans_are_laid_out_on_the_device(config: KVCacheConfig, memory: Memory) -> None:
    check_allocation(config, memory)
    views.check_views(config, memory)
    views.check_clear(config, memory)
    views.check_kernel_blocks(config, memory, 2)


def test_far_blocks_are_addressed_on_the_device(memory: Memory) -> None:
    far.check_far(memory, 1 << 16, 100, 257, wraps=(1 << 16,))


def test_a_view_that_brings_its_blocks_from_the_host_is_caught(memory: Memory) -> None:
    def clear(view: Tensor, blocks: Tensor) -> None:
        view.index_fill_(0, torch.tensor(blocks.tolist()), 0)

    with pytest.raises(RuntimeError, match="index_fill_: a tensor of the device and one of the host"):
        views.check_clear(PLANS["full"], memory, clear)
