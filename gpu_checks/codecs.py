"""Every codec by its name: pack and unpack for each mode of FACTS section 10, UltraQuant and Octave."""

from __future__ import annotations

from kvconform.gpu_checks import (
    codecs_ds_mla,
    codecs_fp4,
    codecs_octave,
    codecs_per_token_head,
    codecs_plain,
    codecs_turboquant,
)
from kvconform.gpu_checks.codec import Codec, HeadShape

FAMILIES = (
    codecs_plain,
    codecs_per_token_head,
    codecs_fp4,
    codecs_turboquant,
    codecs_octave,
    codecs_ds_mla,
)

CODECS: dict[str, Codec] = {codec.name: codec for family in FAMILIES for codec in family.CODECS}

ONLY_SHAPES: dict[str, HeadShape] = {
    "fp8_ds_mla": HeadShape(576, None),
    "fp8_ds_mla_deepseek_v4": HeadShape(512, None),
    **{
        codec.name: HeadShape(codecs_octave.HEAD_SIZE, codecs_octave.HEAD_SIZE)
        for codec in codecs_octave.CODECS
    },
}
"""The shape of codecs that store a single one."""


def shape_for(codec: Codec, size: int) -> HeadShape:
    """K and V heads of this size, or the only shape that the codec stores."""
    return ONLY_SHAPES.get(codec.name, HeadShape(size, size))
