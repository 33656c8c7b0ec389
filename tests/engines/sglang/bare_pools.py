"""SGLang's host pool classes over plain memory, and a door over one of them.

Their constructors want a device pool, and differ from version to version; what the door uses are their methods, which
read the attributes that are set here. Loaded by conftest, since it imports SGLang.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from sglang.srt.mem_cache import hicache_storage
from transformers import AutoConfig

from hicache_core.adapters.sglang import HiCacheDynamicStorage
from hicache_core.pools.slots import expand

_register = AutoConfig.register
AutoConfig.register = staticmethod(lambda kind, made, exist_ok=False: _register(kind, made, exist_ok=True))
"""Older versions of SGLang bring configurations that newer transformers have themselves."""

PAGE, PAGES, LAYERS, HEADS, DIM = 4, 16, 3, 2, 8


def pool_class(name: str) -> Any:
    """A host pool class by its name, wherever this version has it; None where it has none."""
    for module in ("pool_host.mha", "pool_host.mla", "pool_host.mamba", "pool_host.dsa", "memory_pool_host"):
        try:
            found = getattr(import_module(f"sglang.srt.mem_cache.{module}"), name, None)
        except ImportError:
            continue
        if found is not None:
            return found
    return None


def _bare(name: str, layout: str, page_size: int, **attributes: Any) -> Any:
    found = pool_class(name)
    if found is None:
        pytest.skip(f"this version of SGLang has no {name}")
    pool: Any = object.__new__(found)
    common = {
        "layout": layout,
        "page_size": page_size,
        "size": PAGES * page_size,
        "page_num": PAGES,
        "layer_num": LAYERS,
        "start_layer": 0,
        "end_layer": LAYERS,
        "dtype": torch.float16,
        "device": "cpu",
        "pin_memory": False,
        "lock": threading.RLock(),
        "dcp_size": 1,
        "dcp_rank": 0,
    }
    pool.__dict__ |= common | attributes
    return pool


def mha(layout: str, *, layers: int = LAYERS, heads: int = HEADS, dtype: torch.dtype = torch.float16) -> Any:
    """K and V, of random KV."""
    dims = {
        "layer_first": (2, layers, PAGES * PAGE, heads, DIM),
        "page_first": (2, PAGES * PAGE, layers, heads, DIM),
        "page_first_direct": (2, PAGES, layers, PAGE, heads, DIM),
        "page_head": (2, PAGES, heads, PAGE, layers, DIM),
    }[layout]
    shape = {"head_num": heads, "head_dim": DIM, "v_head_dim": DIM, "layer_num": layers, "dtype": dtype}
    return _bare("MHATokenToKVPoolHost", layout, PAGE, kv_buffer=noise(*dims).to(dtype), **shape)


def mla(layout: str) -> Any:
    """One latent vector a token."""
    dims = {
        "layer_first": (LAYERS, PAGES * PAGE, 1, DIM),
        "page_first": (PAGES * PAGE, LAYERS, 1, DIM),
        "page_first_direct": (PAGES, LAYERS, PAGE, 1, DIM),
    }[layout]
    return _bare("MLATokenToKVPoolHost", layout, PAGE, kv_buffer=noise(*dims), kv_cache_dim=DIM)


def asymmetric(layout: str) -> Any:
    """K and V rows of different length, in tensors of their own."""
    by_page = layout == "page_first_direct"
    lead = (PAGES, LAYERS, PAGE, HEADS) if by_page else (PAGES * PAGE, LAYERS, HEADS)
    buffers = {"kv_buffer": (noise(*lead, DIM), noise(*lead, DIM // 2))}
    shape = {"head_num": HEADS, "head_dim": DIM, "v_head_dim": DIM // 2}
    return _bare("AsymmetricMHATokenToKVPoolHost", layout, PAGE, **buffers, **shape)


def mamba(layout: str = "page_first") -> Any:
    """A state a slot: a temporal tensor and two of convolutions; pages of one slot."""
    temporal, conv = noise(PAGES, LAYERS, 1, 6), [noise(PAGES, LAYERS, 1, 3), noise(PAGES, LAYERS, 1, 5)]
    return _bare(
        "MambaPoolHost",
        layout,
        1,
        temporal_buffer=temporal,
        conv_buffer=conv,
        kv_buffer=[temporal, *conv],
        num_mamba_layers=LAYERS,
        temporal_dtype=torch.float16,
        conv_dtype=torch.float16,
        temporal_state_elem_size=6,
        conv_state_elem_sizes=[3, 5],
        conv_state_shapes=[(3,), (5,)],
        slot_state_device_tensors=[],
        slot_state_buffers=[],
        size_per_token=LAYERS * (6 + 3 + 5) * 2,
    )


def indexer(layout: str) -> Any:
    """DSA's index keys with scales, bytes, on the main pool's slots."""
    stride = PAGE * 12
    dims = (LAYERS, PAGES, stride) if layout == "layer_first" else (PAGES, LAYERS, 1, stride)
    buffer = torch.randint(0, 255, dims, dtype=torch.uint8)
    known = next((name for name in ("DSAIndexerPoolHost", "NSAIndexerPoolHost") if pool_class(name)), "none")
    return _bare(
        known,
        layout,
        PAGE,
        index_k_with_scale_buffer=buffer,
        kv_buffer=buffer,
        indexer_page_stride_size=stride,
        indexer_dtype=torch.uint8,
        dtype=torch.uint8,
    )


def logical() -> Any:
    """Slots without bytes: the anchor of compressed models."""
    found = pool_class("LogicalHostPool")
    if found is None:
        pytest.skip("this version of SGLang has no LogicalHostPool")
    return found(PAGES * PAGE, PAGE)


def noise(*dims: int) -> torch.Tensor:
    """Random float16."""
    return torch.randn(*dims).to(torch.float16)


def config(hicache: dict[str, Any], *, v1: bool = True, **fields: Any) -> Any:
    """This version's HiCacheStorageConfig for one rank; fields that it lacks are left out."""
    extra = {"hicache": hicache, **({"interface_v1": 1} if v1 else {})}
    values: dict[str, Any] = {
        "tp_rank": 0,
        "tp_size": 1,
        "pp_rank": 0,
        "pp_size": 1,
        "attn_cp_rank": 0,
        "attn_cp_size": 1,
        "is_mla_model": False,
        "enable_storage_metrics": True,
        "is_page_first_layout": False,
        "model_name": "served/model",
        "extra_config": extra,
        **fields,
    }
    known = {field.name for field in dataclasses.fields(hicache_storage.HiCacheStorageConfig)}
    return hicache_storage.HiCacheStorageConfig(**{name: value for name, value in values.items() if name in known})


def make_door(hicache: dict[str, Any], pool: Any, *, v1: bool = True, **fields: Any) -> Any:
    """The door as SGLang makes and registers it. Its session is at `.session` for the tests."""
    door = HiCacheDynamicStorage(config(hicache, v1=v1, **fields), {})
    door.register_mem_pool_host(pool)
    if hasattr(door, "register_mem_host_pool_v2"):
        door.register_mem_host_pool_v2(pool, pool_name("kv"))
    return door


def pool_name(name: str) -> Any:
    """SGLang's enum member."""
    return hicache_storage.PoolName(name)


def has_pool_name(name: str) -> bool:
    """Whether this version knows that pool."""
    return name in [str(known.value) for known in hicache_storage.PoolName]


def transfer(name: str, keys: Sequence[str] | None, slots: Sequence[int] | None = None, **more: Any) -> Any:
    """SGLang's PoolTransfer; slots: page slots of a pool of PAGE tokens a page, or of one for mamba."""
    indices = None if slots is None else tokens(slots, 1 if name == "mamba" else PAGE)
    return hicache_storage.PoolTransfer(pool_name(name), host_indices=indices, keys=keys, **more)


def tokens(slots: Sequence[int], page_size: int = PAGE) -> torch.Tensor:
    """Token-level host indices of these page slots."""
    return torch.from_numpy(expand(np.asarray(slots, np.int64), page_size))


def hashes(count: int, seed: int = 1) -> list[str]:
    """Page hashes of SGLang's form."""
    return [f"{seed:032x}{number:032x}" for number in range(count)]


def page_bytes(pool: Any, slot: int) -> bytes:
    """A page's bytes, by SGLang's own account of where they lie."""
    import ctypes

    ptrs, sizes = pool.get_page_buffer_meta(tokens([slot], pool.page_size))
    return b"".join(ctypes.string_at(ptr, size) for ptr, size in zip(ptrs, sizes, strict=True))


def same_page(pool: Any, one: int, other: int) -> bool:
    """Whether two slots hold the same bytes."""
    return page_bytes(pool, one) == page_bytes(pool, other)


def wait_until(there: Callable[[], object]) -> None:
    """Wait for what announces itself by no event; bounded."""
    pause = threading.Event()
    for _ in range(10_000):
        if there():
            return
        pause.wait(0.002)
    raise AssertionError("it never came to that")


def wait_until_idle(door: Any) -> None:
    """Until no call is inside the store."""
    wait_until(lambda: not any(door.session.status().running.values()))
