"""Small plans to lay out on real memory: one of each shape of layout, and drawn ones."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from kvconform.reference.deployment import Deployment
from kvconform.reference.grouping import KVCacheGroupSpec
from kvconform.reference.interface import Refused
from kvconform.reference.pages import page_size_bytes
from kvconform.reference.planning import (
    KVCacheConfig,
    KVCacheTensor,
    StridedKVCacheTensor,
    bytes_per_block,
    get_kv_cache_configs,
)
from kvconform.reference.specs import (
    ChunkedLocalAttention,
    FullAttention,
    Mamba,
    MLAAttention,
    SlidingWindow,
    SlidingWindowMLA,
    Spec,
)
from kvconform.reference.uniform import Registry

FULL = FullAttention(block_size=16, num_kv_heads=2, head_size=64, dtype="bfloat16")
WIDE = replace(FULL, num_kv_heads=4)
WINDOW = SlidingWindow(block_size=16, num_kv_heads=2, head_size=64, dtype="bfloat16", sliding_window=100)
CHUNK = ChunkedLocalAttention(
    block_size=16, num_kv_heads=2, head_size=64, dtype="bfloat16", attention_chunk_size=64
)
PADDED = replace(FULL, page_size_padded=9000, indexes_kv_by_block_stride=True)
STATE = Mamba(block_size=16, shapes=((4, 16), (30, 30)), dtypes=("float32", "bfloat16"))
LATENT = MLAAttention(
    block_size=64,
    num_kv_heads=1,
    head_size=512,
    dtype="uint8",
    state_content_bytes=584,
    alignment=576,
    cache_dtype_str="fp8_ds_mla",
    model_version="deepseek_v4",
)
WINDOW_LATENT = SlidingWindowMLA(
    block_size=64,
    num_kv_heads=1,
    head_size=512,
    dtype="uint8",
    state_content_bytes=584,
    alignment=576,
    sliding_window=128,
    cache_dtype_str="fp8_ds_mla",
    model_version="deepseek_v4",
)
INT4 = FullAttention(
    block_size=16,
    num_kv_heads=3,
    head_size=80,
    dtype="uint8",
    kv_quant_mode="INT4_PER_TOKEN_HEAD",
    state_content_bytes=88,
)

MODELS: dict[str, tuple[dict[str, Spec], bool]] = {
    "full": ({f"f.{i}": FULL for i in range(3)}, False),
    "full, packed": ({f"f.{i}": FULL for i in range(3)}, True),
    "full and sliding": (
        {**{f"f.{i}": FULL for i in range(2)}, **{f"w.{i}": WINDOW for i in range(5)}},
        False,
    ),
    "full and sliding, packed": (
        {**{f"f.{i}": FULL for i in range(2)}, **{f"w.{i}": WINDOW for i in range(5)}},
        True,
    ),
    "full, chunked and wide": ({"f.0": FULL, "c.0": CHUNK, "c.1": CHUNK, "x.0": WIDE}, False),
    "uniform": ({"f.0": FULL, "x.0": WIDE, "f.1": FULL}, False),
    "uniform, packed": ({"f.0": FULL, "x.0": WIDE, "f.1": FULL}, True),
    "full and mamba": ({"f.0": FULL, "m.0": STATE, "m.1": STATE}, False),
    "full and mamba, packed": ({"f.0": FULL, "m.0": STATE, "m.1": STATE}, True),
    "padded by hand": ({"p.0": PADDED, "p.1": PADDED}, False),
    "latents": ({"l.0": LATENT, "l.1": LATENT, "v.0": WINDOW_LATENT}, False),
    "latents, packed": ({"l.0": LATENT, "l.1": LATENT, "v.0": WINDOW_LATENT}, True),
    "int4": ({"q.0": INT4, "q.1": INT4}, False),
}
"""Layers by name, and whether they are asked to be packed into one slab."""


def planned(layers: dict[str, Spec], packed: bool, num_blocks: int) -> KVCacheConfig:
    """The reference's configuration of one rank for these layers. Raises `Refused` as it does."""
    deployment = Deployment(max_model_len=32, packed_layout=packed, num_gpu_blocks_override=num_blocks)
    return get_kv_cache_configs((layers,), deployment, (1 << 40,), Registry())[0]


def strided(config: KVCacheConfig) -> KVCacheConfig:
    """The same groups with the newer shape of tensor: layers of one page size side by side.

    Each group's layers start at the beginning of a block, those of one page ``layer_stride`` apart.
    """
    stride = bytes_per_block(config.kv_cache_groups)
    tensors: list[StridedKVCacheTensor] = []
    for group in config.kv_cache_groups:
        offset = 0
        by_page: dict[int, list[str]] = {}
        for name, spec in group.layer_specs().items():
            by_page.setdefault(page_size_bytes(spec), []).append(name)
        for page, names in by_page.items():
            tensors.append(
                StridedKVCacheTensor(
                    size=stride * config.num_blocks,
                    layers=tuple(names),
                    layer_stride=page,
                    block_stride=stride,
                    offset=offset,
                )
            )
            offset += page * len(names)
    return replace(config, kv_cache_tensors=tuple(tensors))


def blocks_first_within_layer(page: int, layers: int, num_blocks: int) -> KVCacheConfig:
    """Strided tensors the other way about: each layer's blocks are contiguous, layers far apart."""
    names = tuple(f"f.{index}" for index in range(layers))
    spec = FullAttention(block_size=1, num_kv_heads=1, head_size=page, dtype="uint8", head_size_v=0)
    tensor = StridedKVCacheTensor(
        size=page * layers * num_blocks, layers=names, layer_stride=page * num_blocks, block_stride=page
    )
    return KVCacheConfig(
        num_blocks=num_blocks,
        kv_cache_tensors=(tensor,),
        kv_cache_groups=(KVCacheGroupSpec(layer_names=names, kv_cache_spec=spec),),
    )


def gapped(page: int, stride: int, offset: int, num_blocks: int) -> KVCacheConfig:
    """One layer in a slab whose blocks hold bytes that are no layer's."""
    spec = FullAttention(block_size=1, num_kv_heads=1, head_size=page, dtype="uint8", head_size_v=0)
    tensor = KVCacheTensor(size=stride * num_blocks, shared_by=("f.0",), offset=offset, block_stride=stride)
    group = KVCacheGroupSpec(layer_names=("f.0",), kv_cache_spec=spec)
    return KVCacheConfig(num_blocks=num_blocks, kv_cache_tensors=(tensor,), kv_cache_groups=(group,))


def collection() -> dict[str, KVCacheConfig]:
    """One small plan of each shape, by name."""
    found: dict[str, KVCacheConfig] = {}
    for name, (layers, packed) in MODELS.items():
        config = planned(layers, packed, 11)
        found[name] = config
        if not packed:
            found[f"{name}, strided"] = strided(config)
    found["strided, layers far apart"] = blocks_first_within_layer(page=1000, layers=3, num_blocks=5)
    found["gaps in every block"] = gapped(page=100, stride=257, offset=31, num_blocks=9)
    return found


def drawn(count: int, seed: int = 0) -> Iterator[tuple[str, KVCacheConfig]]:
    """``count`` plans of drawn layers, sizes and layouts, each of at most a few MiB; a name with each."""
    source = random.Random(seed)
    made = 0
    while made < count:
        layers, packed = _drawn_layers(source)
        try:
            config = planned(layers, packed, source.randint(5, 24))
        except Refused:
            continue
        if not packed and source.random() < 0.5:
            config = strided(config)
        yield f"drawn {seed}.{made}", config
        made += 1


def _drawn_layers(source: random.Random) -> tuple[dict[str, Spec], bool]:
    block = source.choice((8, 16, 32))
    head = source.choice((8, 24, 64, 80))
    heads = source.choice((1, 2, 3))
    dtype = source.choice(("bfloat16", "uint8", "float32"))
    full = FullAttention(block_size=block, num_kv_heads=heads, head_size=head, dtype=dtype)
    kinds: list[Spec] = [
        full,
        replace(full, num_kv_heads=2 * heads),
        SlidingWindow(block_size=block, num_kv_heads=heads, head_size=head, dtype=dtype, sliding_window=20),
        Mamba(block_size=block, shapes=((source.randint(1, 400),),), dtypes=("float32",)),
    ]
    if source.random() < 0.3:
        content = head * source.randint(1, 4) + source.randint(0, 9)
        kinds.append(
            MLAAttention(
                block_size=block,
                num_kv_heads=1,
                head_size=head,
                dtype=dtype,
                state_content_bytes=content,
                alignment=source.choice((64, 576)),
            )
        )
    layers: dict[str, Spec] = {}
    for index, spec in enumerate(source.sample(kinds, source.randint(1, 3))):
        for position in range(source.randint(1, 4)):
            layers[f"{index}.{position}"] = spec
    return layers, source.random() < 0.4
