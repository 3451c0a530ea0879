"""The configuration that a vLLM release plans by, as its engine core holds it: values by section."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvconform.conformance.adapters.vllm import Adapter
from kvconform.conformance.adapters.vllm_modules import LAYOUTS, UTILITIES, PlanningModules
from kvconform.conformance.adapters.vllm_outcomes import Unsupported

LAYOUT_NAMES = {False: "LBNHC", True: "BLHNC"}
"""By whether layers are packed into one block: the layout that releases with named layouts prefer
when no backend asks for one, and the block-outermost one that their planner recommends."""

SPECULATIVE_METHOD = "mtp"
"""How draft layers come about: registered after all others, which releases without a marker rely on."""

Wire = dict[str, Any]


class Configuration:
    """What the release is told of a deployment; only values that planning is known to read."""

    def __init__(self, adapter: Adapter, modules: PlanningModules) -> None:
        self._adapter = adapter
        self._modules = modules

    def model_values(
        self, ranks: Sequence[Mapping[str, Wire]], deployment: Wire, automatic_length: bool = False
    ) -> dict[str, Any]:
        """The configuration, by section, that the engine core holds while it plans a model.

        With ``automatic_length`` the user left the longest length to the planner.
        """
        layers = [spec for rank in ranks for spec in rank.values()]
        values = self.config_values(deployment, layers)
        if automatic_length:
            values["model_config"] |= {"original_max_model_len": -1}
        drafts = deployment["draft_layers"]
        if drafts:
            last = [name for rank in ranks for name in rank][-1]
            values |= {
                "num_prefill_lookahead_tokens": 1,
                "speculative_config": {
                    "method": SPECULATIVE_METHOD if last in drafts else "eagle",
                    "num_speculative_tokens": 1,
                    "use_eagle": Returns(True),
                    "use_eagle_block_drop": Returns(True),
                    "use_multi_module_mtp": Returns(False),
                },
            }
        return values

    def config_values(self, deployment: Wire, specs: Sequence[Wire]) -> dict[str, Any]:
        """The configuration, by section, that the engine core holds once these specs are planned."""
        values = self._adapter.config_values(deployment, _together(specs))
        length = values["model_config"]["max_model_len"]
        ranks = deployment["decode_context_parallel"]
        values["model_config"] |= {
            "original_max_model_len": length,
            "supports_kv_cache_grouping": False,
            "hf_config": {"model_type": ""},
        }
        # Ranks of decode context parallelism are ranks of tensor parallelism.
        values["parallel_config"] |= {"tensor_parallel_size": ranks, "pipeline_parallel_size": 1}
        values["scheduler_config"] |= {
            "disable_hybrid_kv_cache_manager": not deployment["hybrid_kv_cache_manager"]
        }
        unit = deployment["prefix_match_unit"]
        values["cache_config"] |= {
            # After planning the engine core takes the groups' smallest for its own.
            "block_size": min((spec["block_size"] for spec in specs), default=1),
            "num_gpu_blocks_override": deployment["num_gpu_blocks_override"],
            "enable_prefix_caching": True,
            "prefix_match_unit": unit,
            "hash_block_size": unit,
            "prefix_cache_retention_interval": None,
        }
        values |= {
            "kv_transfer_config": None,
            "speculative_config": None,
            "num_prefill_lookahead_tokens": 0,
            "attention_config": {"hisparse_config": None},
            "device_config": {"device_type": "cuda"},
        }
        self._lay_out(values, deployment["packed_layout"])
        return values

    def _lay_out(self, values: dict[str, Any], packed: bool) -> None:
        if self._modules.path(LAYOUTS).exists():
            layouts = self._modules.load(LAYOUTS).KVCacheLayout.__members__
            name = LAYOUT_NAMES[packed]
            if name not in layouts:
                raise Unsupported(f"KV-cache layout {name}")
            layout = Returns(layouts[name], f"KVCacheLayout.{name}", LAYOUTS)
            values["cache_config"] |= {"get_resolved_kv_cache_layout": layout}
        elif packed:
            if "enable_cross_layers_blocks" not in self._modules.text(UTILITIES):
                raise Unsupported("a packed layout")
            extra = Whole({"enable_cross_layers_blocks": "true"})
            values["kv_transfer_config"] = {"kv_connector_extra_config": extra}


class Returns:
    """A method of the configuration that answers one value, written ``text`` in Python."""

    def __init__(self, value: Any, text: str = "", module: str = "") -> None:
        self.value = value
        self.text = text or repr(value)
        self.module = module

    def __call__(self) -> Any:
        return self.value


class Whole:
    """A dictionary that is a value of the configuration itself, not a section of it."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values
        self.get = values.get

    def __repr__(self) -> str:
        return repr(self.values)


def _together(specs: Sequence[Wire]) -> Wire:
    """The specs, uniform_types opened, in the form in which one uniform_type holds its layers."""
    return {
        "kind": "uniform_type",
        "kv_cache_specs": [["", layer] for spec in specs for layer in _open(spec)],
    }


def _open(spec: Wire) -> Iterator[Wire]:
    if spec["kind"] == "uniform_type":
        for _, layer in spec["kv_cache_specs"]:
            yield from _open(layer)
    else:
        yield spec
