"""Shapes of the recurrent state of one layer, from a model's dims.

Each function answers (convolution state, recurrent state) of one rank, in elements. Source: the
state caches of the models' implementations in vLLM (mamba_utils, MambaStateShapeCalculator).
"""

from __future__ import annotations

from collections.abc import Callable

from kvconform.reference.interface import Refused

Shapes = tuple[tuple[int, ...], tuple[int, ...]]


def mamba1(*, intermediate_size: int, state_size: int, conv_kernel: int, ranks: int = 1) -> Shapes:
    """Mamba 1: the last inputs of the convolution, and one state per inner channel."""
    channels = share("intermediate_size", intermediate_size, ranks)
    return (conv_kernel - 1, channels), (channels, state_size)


def mamba2(
    *, num_heads: int, head_size: int, num_groups: int, state_size: int, conv_kernel: int, ranks: int = 1
) -> Shapes:
    """Mamba 2: B and C of every group pass through the convolution beside the inner channels.

    Groups that cannot be shared out are repeated, so that each rank has those that its heads read.
    """
    groups = ranks if num_groups < ranks else num_groups
    channels = share("num_heads", num_heads, ranks) * head_size
    channels += 2 * share("num_groups", groups, ranks) * state_size
    return (conv_kernel - 1, channels), (share("num_heads", num_heads, ranks), head_size, state_size)


def gated_delta_net(
    *,
    num_key_heads: int,
    num_value_heads: int,
    key_head_size: int,
    value_head_size: int,
    conv_kernel: int,
    ranks: int = 1,
) -> Shapes:
    """Gated delta net: queries, keys and values pass through the convolution."""
    keys = share("num_key_heads", num_key_heads, ranks) * key_head_size
    values = share("num_value_heads", num_value_heads, ranks) * value_head_size
    recurrent = (share("num_value_heads", num_value_heads, ranks), value_head_size, key_head_size)
    return (conv_kernel - 1, 2 * keys + values), recurrent


STATES: dict[str, Callable[..., Shapes]] = {
    "mamba1": mamba1,
    "mamba2": mamba2,
    "gdn_attention": gated_delta_net,
}
"""The functions above by the ``mamba_type`` of a spec."""


def share(name: str, amount: int, ranks: int) -> int:
    """What one of the ranks holds of an amount; `Refused` unless it is a whole share."""
    if ranks < 1 or amount % ranks != 0:
        raise Refused(f"{name} {amount} cannot be shared by {ranks} ranks")
    return amount // ranks
