"""Has kvconform ask the plugin's kind wherever a law is about a sliding window.

    kvconform run vllm==0.33.0 --import ring_kvconform --kinds sliding_window

With vLLM installed, `vllm` in place of `vllm==0.33.0`; in another interpreter, with `--python`.
"""

from __future__ import annotations

import ring_plugin
from kvconform.conformance.adapters import vllm_specs
from vllm.v1 import kv_cache_interface

# The adapter finds a kind's class by its name, in the module that holds vLLM's own.
kv_cache_interface.RingWindowSpec = ring_plugin.RingWindowSpec
vllm_specs.CLASSES["sliding_window"] = "RingWindowSpec"
