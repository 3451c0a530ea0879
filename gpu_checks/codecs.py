"""Every codec by its name: pack and unpack for each mode of FACTS section 10.

Octave (releases from 0.33) is left out: no public description beyond one release's own code was
found to pack from.
"""

from __future__ import annotations

from kvconform.gpu_checks import (
    codecs_ds_mla,
    codecs_fp4,
    codecs_per_token_head,
    codecs_plain,
    codecs_turboquant,
)
from kvconform.gpu_checks.codec import Codec

CODECS: dict[str, Codec] = {
    codec.name: codec
    for family in (codecs_plain, codecs_per_token_head, codecs_fp4, codecs_turboquant, codecs_ds_mla)
    for codec in family.CODECS
}
