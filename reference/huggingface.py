"""The layers of a model from its Hugging Face config.json.

Only what the file says, and what `omissions` lists, decides a size. A field that is missing, null
where it may not be, or at odds with another is `Refused` by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvconform.reference.interface import Refused
from kvconform.reference.models import Layers, attention, hybrids
from kvconform.reference.models.fields import Fields
from kvconform.reference.models.omissions import DEFAULTS
from kvconform.reference.models.reading import Parts, Reading, known_dtype
from kvconform.reference.specs import Spec

ARCHITECTURES: dict[str, tuple[Callable[[Reading], Parts], str | None]] = {
    "BambaForCausalLM": (hybrids.bamba, None),
    "BartForConditionalGeneration": (attention.encoder_decoder, None),
    "BertForMaskedLM": (attention.encoder, None),
    "CohereForCausalLM": (attention.full, None),
    "DeepseekV2ForCausalLM": (attention.latent, None),
    "DeepseekV3ForCausalLM": (attention.latent, None),
    "DeepseekV32ForCausalLM": (attention.latent, None),
    "GPT2LMHeadModel": (attention.gpt2, None),
    "Gemma2ForCausalLM": (attention.alternating, None),
    "Gemma3ForCausalLM": (attention.gemma3, None),
    "Gemma3ForConditionalGeneration": (attention.gemma3, "text_config"),
    "GlmMoeDsaForCausalLM": (attention.latent, None),
    "GptOssForCausalLM": (attention.alternating, None),
    "GraniteMoeHybridForCausalLM": (hybrids.granite, None),
    "JambaForCausalLM": (hybrids.jamba, None),
    "KimiK25ForConditionalGeneration": (attention.latent, "text_config"),
    "Llama4ForCausalLM": (attention.llama4, None),
    "Llama4ForConditionalGeneration": (attention.llama4, "text_config"),
    "LlamaForCausalLM": (attention.full, None),
    "MistralForCausalLM": (attention.one_window, None),
    "MixtralForCausalLM": (attention.one_window, None),
    "NemotronHForCausalLM": (hybrids.nemotron_h, None),
    "OPTForCausalLM": (attention.full, None),
    "PanguProMoEV2ForCausalLM": (attention.sink, None),
    "Phi3ForCausalLM": (attention.one_window, None),
    "Qwen2ForCausalLM": (attention.qwen, None),
    "Qwen2MoeForCausalLM": (attention.qwen, None),
    "Qwen3ForCausalLM": (attention.qwen, None),
    "Qwen3MoeForCausalLM": (attention.qwen, None),
    "Qwen3NextForCausalLM": (hybrids.qwen3_next, None),
    "Qwen3_5ForConditionalGeneration": (hybrids.qwen3_next, "text_config"),
    "Qwen3_5MoeForConditionalGeneration": (hybrids.qwen3_next, "text_config"),
    "WhisperForConditionalGeneration": (attention.encoder_decoder, None),
    "Zamba2ForCausalLM": (hybrids.zamba2, None),
}
"""How each architecture is read, and the object inside the file that describes its language model."""


def layers_of(
    config: Mapping[str, Any],
    *,
    block_size: int,
    cache_dtype: str = "auto",
    dtype: str | None = None,
    draft: bool = False,
) -> Layers:
    """The layers of the model that a config.json describes, as the collection names them.

    ``block_size`` in tokens. ``dtype`` is what the model runs in, by default what the file states,
    and needed where it states none. With ``draft`` the layers of multi-token prediction that come
    with the model follow its own.

    Raises `Refused`, naming the field, for a file that lacks or contradicts something, and for an
    architecture that is not in `ARCHITECTURES`.
    """
    if not isinstance(config, Mapping):
        raise Refused(f"config.json: {type(config).__name__} instead of an object")
    whole = Fields(config)
    architecture = _architecture(whole)
    reader, inside = ARCHITECTURES[architecture]
    values = config if inside is None else {**_dtype_of(config), **whole.nested(inside)}
    fields = Fields(values, DEFAULTS.get(architecture, {}))
    reading = Reading(architecture, fields, block_size, cache_dtype, dtype or _dtype(fields))
    own = _named("layers", reader(reading))
    return own + _named("draft", attention.draft(reading)) if draft else own


def _architecture(fields: Fields) -> str:
    stated = fields.sequence("architectures")
    if not stated:
        raise Refused("architectures: missing")
    if len(stated) > 1:
        raise Refused(f"architectures: {list(stated)} are several")
    if stated[0] not in ARCHITECTURES:
        raise Refused(
            f"architectures: {stated[0]!r} is unknown; known are {', '.join(sorted(ARCHITECTURES))}"
        )
    return str(stated[0])


def _dtype_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The dtype of the whole, which the part for the language model may leave out."""
    return {name: config[name] for name in ("torch_dtype", "dtype") if config.get(name) is not None}


def _dtype(fields: Fields) -> str:
    older, newer = fields.value("torch_dtype"), fields.value("dtype")
    if older is not None and newer is not None and older != newer:
        raise Refused(f"dtype: {newer!r} contradicts torch_dtype {older!r}")
    name = "dtype" if newer is not None else "torch_dtype"
    return known_dtype(name, newer if newer is not None else older)


def _named(prefix: str, layers: Sequence[Mapping[str, Spec]]) -> Layers:
    return tuple(
        (f"{prefix}.{index}.{part}", spec)
        for index, layer in enumerate(layers)
        for part, spec in layer.items()
    )
