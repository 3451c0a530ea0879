"""The two fp8_ds_mla layouts: a latent in 8-bit floats beside its rotary part in bfloat16."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from kvconform.gpu_checks.codec import (
    Absent,
    Bound,
    Codec,
    Side,
    finite_or_zero,
    finite_rows,
    largest_magnitude,
)
from kvconform.gpu_checks.codecs_per_token_head import row_scale
from kvconform.gpu_checks.floats import (
    E4M3,
    FLOAT32_LEAST_NORMAL,
    bfloat16_error,
    bytes_of,
    decode_fp8,
    decode_ue8m0,
    divided,
    encode_fp8,
    encode_ue8m0,
    to_bfloat16,
    values_of,
)
from kvconform.gpu_checks.packing import in_groups
from kvconform.reference.interface import Refused
from torch import Tensor
from torch.nn.functional import pad

ROPE = 64
"""Elements of the rotary part."""
STORED_BYTES = {"fp8_ds_mla": 656, "fp8_ds_mla_deepseek_v4": 584}
"""Bytes of one state (FACTS section 10): 512 + 16 + 128, and 448 + 128 + 8."""
_LEAST_POWER = 2.0**-127


@dataclass(frozen=True)
class LatentWithRope(Side):
    """``latent`` e4m3 values in groups of ``group`` with a scale each, and 64 bfloat16 values.

    Scales are float32 (greatest magnitude m / 448), or with ``power_scales`` the least power of two
    that covers it, one byte each in a field of 8 bytes.

    Bound: of the latent max(|x| / 2^4, s / 2^10), with s <= max(m / 448, least scale) x (1 + 2^-23),
    or twice that where scales are powers of two; of the rotary part |x| / 2^8, half an ulp of
    bfloat16, whose finite values saturate. A group with an infinity or NaN reads back as NaN; in the
    rotary part both stay.
    """

    latent: int
    group: int
    power_scales: bool

    def refuse(self, size: int) -> None:
        if size != self.latent + ROPE:
            raise Refused(f"the layout holds {self.latent} + {ROPE} elements, not {size}")

    def lengths(self, size: int) -> tuple[int, ...]:  # noqa: ARG002
        return (
            self.latent,
            2 * ROPE,
            8 if self.power_scales else 4 * (self.latent // self.group),
        )

    def encode(self, rows: Tensor) -> tuple[Tensor, ...]:
        values, finite = finite_or_zero(self._groups(rows))
        rope = bytes_of(to_bfloat16(rows[..., self.latent :].to(torch.float64)))
        if self.power_scales:
            scales = encode_ue8m0(divided(largest_magnitude(values), E4M3.largest).clamp(min=_LEAST_POWER))
            codes = encode_fp8(values / decode_ue8m0(scales), E4M3)
            scales = scales.masked_fill(~finite, 255).flatten(-2)
            return codes.flatten(-2), rope, pad(scales, (0, 8 - scales.shape[-1]))
        steps = row_scale(values, E4M3.largest)
        codes = encode_fp8(values / steps.to(torch.float64), E4M3)
        return codes.flatten(-2), rope, bytes_of(steps.masked_fill(~finite, float("nan")).flatten(-2))

    def decode(self, parts: tuple[Tensor, ...], size: int) -> Tensor:  # noqa: ARG002
        codes, rope, scales = parts
        count = self.latent // self.group
        steps = decode_ue8m0(scales[..., :count]) if self.power_scales else values_of(scales, torch.float32)
        groups = in_groups(decode_fp8(codes, E4M3), self.group)
        latent = (groups * steps.unsqueeze(-1)).flatten(-2)
        return torch.cat((latent, values_of(rope, torch.bfloat16)), dim=-1)

    def bound(self, rows: Tensor) -> Bound:
        values = self._groups(rows).to(torch.float64).abs()
        step = largest_magnitude(values) / E4M3.largest
        if self.power_scales:
            step = (2 * step).clamp(min=_LEAST_POWER)
        else:
            step = step.clamp(min=FLOAT32_LEAST_NORMAL)
        latent = torch.maximum(values * 2.0**-E4M3.precision, step * E4M3.least_step / 2)
        rope = bfloat16_error(rows[..., self.latent :].to(torch.float64).abs())
        return Bound.of_elements(torch.cat((latent.flatten(-2) * (1 + 2.0**-18), rope), dim=-1))

    def reads_nan(self, rows: Tensor) -> Tensor:
        groups = self._groups(rows)
        lost = (~finite_rows(groups)).expand(groups.shape).flatten(-2)
        return torch.cat((lost, rows[..., self.latent :].isnan()), dim=-1)

    def _groups(self, rows: Tensor) -> Tensor:
        return in_groups(rows[..., : self.latent], self.group)


def _layout(name: str, side: LatentWithRope) -> Codec:
    return Codec(name, None, side, Absent(), latents=True, heads=False)


CODECS = (
    _layout("fp8_ds_mla", LatentWithRope(512, 128, power_scales=False)),
    _layout("fp8_ds_mla_deepseek_v4", LatentWithRope(448, 64, power_scales=True)),
)
