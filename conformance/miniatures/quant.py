"""Faults in modes and in the bytes that they store (FACTS section 10)."""

from __future__ import annotations

from collections.abc import Mapping

from kvconform.conformance.miniatures.engine import Engine
from kvconform.conformance.miniatures.registry import breaks
from kvconform.reference.arithmetic import round_up
from kvconform.reference.interface import Refused
from kvconform.reference.modes import FAMILIES, MODES, SCALE_BYTES
from kvconform.reference.specs import LATENT, AttentionSpec, Spec

DYNAMIC_8_BIT = ("INT8_PER_TOKEN_HEAD", "FP8_PER_TOKEN_HEAD")


@breaks("quant/modes-distinct")
class ModesOfOneValue(Engine):
    """A new mode is given the value of an old one, so that both names mean the same mode."""

    def quant_modes(self) -> Mapping[str, int]:
        return {**MODES, "TURBOQUANT_3BIT_NC": MODES["TURBOQUANT_K3V4_NC"]}


@breaks("quant/modes-distinct", "quant/families-disjoint")
class ModeOfNoValue(Engine):
    """A quantised mode has the value of NONE."""

    def quant_modes(self) -> Mapping[str, int]:
        return {**MODES, "FP8_PER_TENSOR": MODES["NONE"]}


@breaks("quant/families-disjoint")
class ModeInTwoFamilies(Engine):
    """Every mode of four bits counts as nvfp4, whatever family it belongs to."""

    def quant_families(self, mode: str) -> tuple[str, ...]:
        families = super().quant_families(mode)
        return (*families, "nvfp4") if "4" in mode and "nvfp4" not in families else families


@breaks("quant/families-disjoint")
class FamilyByExclusion(Engine):
    """What is neither nvfp4 nor turboquant counts as per token-head, unquantised included."""

    def quant_families(self, mode: str) -> tuple[str, ...]:
        return super().quant_families(mode) or ("per_token_head",)


@breaks("quant/names-total")
class UnknownDtypeTakenAsUnquantised(Engine):
    """A cache dtype string that nobody knows means no quantisation."""

    def get_kv_quant_mode(self, cache_dtype: str) -> str:
        try:
            return super().get_kv_quant_mode(cache_dtype)
        except Refused:
            return "NONE"


@breaks("quant/names-total")
class DtypeByPrefix(Engine):
    """A cache dtype string that only begins like a known one is taken for it."""

    def get_kv_quant_mode(self, cache_dtype: str) -> str:
        known = [name for name in self.cache_dtypes() if cache_dtype and name.startswith(cache_dtype)]
        return super().get_kv_quant_mode(cache_dtype if cache_dtype in known or not known else known[0])


@breaks("quant/names-total")
class DtypeOfNoMode(Engine):
    """A cache dtype string is accepted though its mode was never added."""

    def cache_dtypes(self) -> tuple[str, ...]:
        return (*super().cache_dtypes(), "turboquant_2bit_nc")

    def get_kv_quant_mode(self, cache_dtype: str) -> str:
        two_bits = cache_dtype == "turboquant_2bit_nc"
        return "TURBOQUANT_2BIT_NC" if two_bits else super().get_kv_quant_mode(cache_dtype)

    def cache_element_dtype(self, cache_dtype: str) -> str | None:
        return "uint8" if cache_dtype == "turboquant_2bit_nc" else super().cache_element_dtype(cache_dtype)


@breaks("quant/quantised-means-quantised")
class VendorDtypeTakenAsUnquantised(Engine):
    """One vendor's name of an 8-bit cache is missing from the table of modes and means NONE."""

    def get_kv_quant_mode(self, cache_dtype: str) -> str:
        return "NONE" if cache_dtype == "fp8_inc" else super().get_kv_quant_mode(cache_dtype)


@breaks("quant/formats-injective")
class EveryFp8StoredAsBytes(Engine):
    """Both 8-bit float formats are stored as uint8, so that nothing tells their bytes apart."""

    def cache_element_dtype(self, cache_dtype: str) -> str | None:
        return "uint8" if cache_dtype.startswith("fp8") else super().cache_element_dtype(cache_dtype)


@breaks("quant/formats-injective")
class ThreeBitValuesReadAsFour(Engine):
    """The cache dtype with 3-bit values maps to the mode with 4-bit values."""

    def get_kv_quant_mode(self, cache_dtype: str) -> str:
        three_bits = cache_dtype == "turboquant_3bit_nc"
        return super().get_kv_quant_mode("turboquant_k3v4_nc" if three_bits else cache_dtype)


@breaks("quant/content-holds-payload")
class OddHeadHalved(Engine):
    """An odd head size packed two elements to a byte is rounded down instead of refused."""

    def stored_bytes(self, spec: Spec) -> int:
        assert isinstance(spec, AttentionSpec)
        if spec.kv_quant_mode != "INT4_PER_TOKEN_HEAD" or isinstance(spec, LATENT):
            return super().stored_bytes(spec)
        return spec.head_size // 2 + spec.value_head_size // 2 + 2 * SCALE_BYTES


@breaks("quant/content-holds-payload", "quant/content-formula")
class ScalesForgotten(Engine):
    """The scales of 8-bit token-heads are not counted."""

    def stored_bytes(self, spec: Spec) -> int:
        assert isinstance(spec, AttentionSpec)
        return super().stored_bytes(spec) - (2 * SCALE_BYTES if spec.kv_quant_mode in DYNAMIC_8_BIT else 0)


@breaks("quant/content-holds-payload", "quant/content-formula")
class ScaleOfHalfPrecision(Engine):
    """A token-head's scales are counted as 16-bit floats and stored as 32-bit ones."""

    def stored_bytes(self, spec: Spec) -> int:
        assert isinstance(spec, AttentionSpec)
        saved = SCALE_BYTES if spec.kv_quant_mode in FAMILIES["per_token_head"] else 0
        return super().stored_bytes(spec) - saved


@breaks("quant/content-holds-payload", "quant/content-formula")
class KeyNormForgotten(Engine):
    """The 16-bit norm of turboquant keys has no bytes of its own."""

    def stored_bytes(self, spec: Spec) -> int:
        assert isinstance(spec, AttentionSpec)
        return super().stored_bytes(spec) - (2 if spec.kv_quant_mode.endswith("_NC") else 0)


@breaks("quant/content-formula", "quant/never-larger")
class ScaleForEveryElement(Engine):
    """Every 8-bit element is stored with a scale, where one serves the whole token-head."""

    def stored_bytes(self, spec: Spec) -> int:
        assert isinstance(spec, AttentionSpec)
        if spec.kv_quant_mode not in DYNAMIC_8_BIT:
            return super().stored_bytes(spec)
        elements = spec.head_size + spec.value_head_size
        return elements + max(2, elements) * SCALE_BYTES


@breaks("quant/content-formula", "quant/scale-share")
class ScalesPaddedToTiles(Engine):
    """The scales of nvfp4 are padded to whole tiles of 16, which a head of one more element pays again."""

    def stored_bytes(self, spec: Spec) -> int:
        stored = super().stored_bytes(spec)
        assert isinstance(spec, AttentionSpec)
        if spec.kv_quant_mode != "NVFP4":
            return stored
        return 2 * (spec.head_size // 2 + round_up(spec.head_size // 16, 16))


@breaks("quant/content-formula", "quant/mla-single-latent")
class LatentScaledForValues(Engine):
    """A latent stores the scales of a V part that it does not have."""

    def stored_bytes(self, spec: Spec) -> int:
        assert isinstance(spec, AttentionSpec)
        extra = isinstance(spec, LATENT) and spec.kv_quant_mode in DYNAMIC_8_BIT
        return super().stored_bytes(spec) + (2 * SCALE_BYTES if extra else 0)


@breaks("quant/content-formula", "quant/mla-single-latent")
class LatentCountedTwice(Engine):
    """An 8-bit latent is counted as K and as V."""

    def stored_bytes(self, spec: Spec) -> int:
        assert isinstance(spec, AttentionSpec)
        twice = isinstance(spec, LATENT) and spec.kv_quant_mode == "FP8_PER_TENSOR"
        return super().stored_bytes(spec) * (2 if twice else 1)
