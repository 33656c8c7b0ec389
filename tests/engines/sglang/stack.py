"""SGLang's own cache on a CPU: UnifiedRadixCache, HybridCacheController and host pool, with our door as its L3.

Only what needs a GPU is stood in for: events and streams, and the four copies between device and host pool, which
are plain tensor indexing here. Loaded by conftest, since it imports SGLang.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import threading
import time
import types
from array import array
from collections.abc import Callable
from typing import Any

import msgspec
import sglang.srt.managers.cache_controller as controller_module
import sglang.srt.mem_cache.l2_transfer as transfer_module
import sglang.srt.mem_cache.pool_host.base as base_module
import sglang.srt.mem_cache.pool_host.mha as mha_module
import torch
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import (
    CacheRequestHandle,
    EvictParams,
    InsertParams,
    MatchPrefixParams,
)
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.runtime_context import get_parallel, get_server_args
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

PAGE, SLOTS, LAYERS, HEADS, DIM = 16, 1024, 4, 2, 8
BOUND = 60.0
"""Seconds after which a wait has failed; the first query compiles SGLang's hash extension."""


class _Instant:
    """An event or stream of a device that has finished everything."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.query = lambda: True
        self.elapsed_time = lambda _: 0.0
        for name in ("record", "wait", "synchronize", "wait_stream", "wait_event"):
            setattr(self, name, lambda *_: None)


def _stand_in_for_the_device() -> None:
    device = types.SimpleNamespace(
        Event=_Instant,
        Stream=_Instant,
        stream=lambda _: contextlib.nullcontext(),
        current_stream=lambda *_: _Instant(),
        synchronize=lambda *_: None,
        __name__="cpu",
    )
    controller_module.device_module = transfer_module.device_module = device
    base_module.HICACHE_HOST_MEMORY_RESERVE_BYTES = 0

    def plain(dims: Any, dtype: Any, **_: Any) -> torch.Tensor:
        return torch.zeros(dims, dtype=dtype)

    mha_module.ALLOC_MEMORY_FUNCS.default_factory = lambda: plain

    def one_layer(**a: Any) -> None:
        for part in "kv":
            a[f"dst_{part}"][a["dst_indices"]] = a[f"src_{part}"][a["src_indices"]]

    def one_layer_of_pages(**a: Any) -> None:
        for part in "kv":
            a[f"dst_{part}"][a["dst_indices"]] = a[f"src_{part}"][a["src_indices"], a["layer_id"]]

    mha_module.transfer_kv_per_layer = one_layer
    mha_module.transfer_kv_per_layer_pf_lf = one_layer_of_pages


def _copies_to_host(kv: MHATokenToKVPool, host: list[Any]) -> None:
    """Device to host: the real functions get tables of addresses, so these look at the pools themselves."""

    def all_layers(**a: Any) -> None:
        for layer in range(LAYERS):
            for ours, theirs in ((host[0].k_buffer, kv.k_buffer), (host[0].v_buffer, kv.v_buffer)):
                ours[layer][a["dst_indices"]] = theirs[layer][a["src_indices"]]

    def all_layers_to_pages(**a: Any) -> None:
        for layer in range(LAYERS):
            for ours, theirs in ((a["dst_k"], kv.k_buffer), (a["dst_v"], kv.v_buffer)):
                ours[a["dst_indices"], layer] = theirs[layer][a["src_indices"]]

    def direct_to_pages(**a: Any) -> None:
        """page_first_direct moves whole pages: [page, layer, token, head, dim]."""
        firsts = a["src_indices"][::PAGE], a["dst_indices"][::PAGE]
        for source, target in zip(*firsts, strict=True):
            for layer in range(LAYERS):
                for ours, theirs in ((host[0].k_buffer, kv.k_buffer), (host[0].v_buffer, kv.v_buffer)):
                    ours[target // PAGE, layer] = theirs[layer][source : source + PAGE]

    def direct_from_pages(**a: Any) -> None:
        layer, firsts = a["layer_id"], (a["src_indices"][::PAGE], a["dst_indices"][::PAGE])
        for source, target in zip(*firsts, strict=True):
            for ours, theirs in ((host[0].k_buffer, kv.k_buffer), (host[0].v_buffer, kv.v_buffer)):
                theirs[layer][target : target + PAGE] = ours[source // PAGE, layer]

    def heads_to_pages(**a: Any) -> None:
        """page_head: [page, head, token, layer, dim]."""
        page, token = a["dst_indices"] // PAGE, a["dst_indices"] % PAGE
        for layer in range(LAYERS):
            for ours, theirs in ((a["dst_k"], kv.k_buffer), (a["dst_v"], kv.v_buffer)):
                ours[page, :, token, layer] = theirs[layer][a["src_indices"]]

    def heads_from_pages(**a: Any) -> None:
        page, token = a["src_indices"] // PAGE, a["src_indices"] % PAGE
        for part in "kv":
            a[f"dst_{part}"][a["dst_indices"]] = a[f"src_{part}"][page, :, token, a["layer_id"]]

    mha_module.transfer_kv_all_layer_lf_ph = heads_to_pages
    mha_module.transfer_kv_per_layer_ph_lf = heads_from_pages
    mha_module.transfer_kv_all_layer = all_layers
    mha_module.transfer_kv_all_layer_lf_pf = all_layers_to_pages
    mha_module.transfer_kv_all_layer_direct_lf_pf = direct_to_pages
    mha_module.transfer_kv_per_layer_direct_pf_lf = direct_from_pages


_stand_in_for_the_device()
_made = inspect.signature(mha_module.MHATokenToKVPoolHost.__init__)
_first_init = mha_module.MHATokenToKVPoolHost.__init__


class Engine:
    """One server's cache. hicache: what stands under that key of the extra config."""

    def __init__(
        self,
        hicache: dict[str, Any],
        *,
        layout: str = "page_first",
        core: str = "rust",
        v1: bool = True,
        model: str = "dummy",
        served_as: str | None = None,
        policy: str = "wait_complete",
        extra: dict[str, Any] | None = None,
    ) -> None:
        config = {
            "backend_name": "hicache",
            "module_path": "hicache_core.adapters.sglang",
            "class_name": "HiCacheDynamicStorage",
            "prefetch_threshold": PAGE,
            "hicache": hicache,
            **({"interface_v1": 1} if v1 else {}),
            **(extra or {}),
        }
        arguments = ServerArgs(
            model_path="dummy",  # any other one would be looked up
            served_model_name=served_as,
            page_size=PAGE,
            hicache_io_backend="direct" if layout == "page_first_direct" else "kernel",
            hicache_mem_layout=layout,
            hicache_write_policy="write_through",
            hicache_storage_backend="dynamic",
            hicache_storage_backend_extra_config=json.dumps(config),
            hicache_storage_prefetch_policy=policy,
            hicache_ratio=2.0,
        )
        set_global_server_args_for_scheduler(arguments)
        msgspec.structs.force_setattr(get_server_args(), "model_path", model)
        self._parallel = get_parallel().override(tp_rank=0, tp_size=1, pp_rank=0, pp_size=1)
        self._parallel.__enter__()
        try:
            self._build(arguments, core)
        except BaseException:
            self._parallel.__exit__(None, None, None)
            raise

    def _build(self, arguments: ServerArgs, core: str) -> None:
        self.kv = MHATokenToKVPool(
            size=SLOTS,
            page_size=PAGE,
            dtype=torch.float32,
            head_num=HEADS,
            head_dim=DIM,
            layer_num=LAYERS,
            device="cpu",
            enable_memory_saver=False,
        )
        self.allocator = TokenToKVPoolAllocator(
            size=SLOTS, dtype=torch.float32, device="cpu", kvcache=self.kv, need_sort=False
        )
        requests = ReqToTokenPool(size=8, max_context_len=2048, device="cpu", enable_memory_saver=False)
        host: list[Any] = []

        def init(pool: Any, *args: Any, **kwargs: Any) -> None:
            bound = _made.bind(pool, *args, **kwargs)
            bound.arguments["pin_memory"] = False
            _first_init(*bound.args, **bound.kwargs)
            host[:] = [pool]

        mha_module.MHATokenToKVPoolHost.__init__ = init
        try:
            _copies_to_host(self.kv, host)
            params = CacheInitParams(
                req_to_token_pool=requests,
                token_to_kv_pool_allocator=self.allocator,
                page_size=PAGE,
                disable=False,
                tree_components=(ComponentType.FULL,),
                tree_core_backend=core,
            )
            self.cache = UnifiedRadixCache(params=params)
            self.cache.init_hicache(arguments, params)
        finally:
            mha_module.MHATokenToKVPoolHost.__init__ = _first_init
        self.cache.load_back_threshold = 0
        self.controller = self.cache.cache_controller
        self.requests = 0

    @property
    def door(self) -> Any:
        """The HiCacheDynamicStorage that SGLang made."""
        return self.controller.storage_backend

    @property
    def threads(self) -> list[threading.Thread]:
        """SGLang's storage threads."""
        names = ("prefetch_thread", "prefetch_io_aux_thread", "prefetch_sync_thread", "backup_thread")
        return [getattr(self.controller, name) for name in names]

    def pump(self, condition: Callable[[], bool], bound: float = BOUND) -> None:
        """Run the scheduler's part until the condition holds. There is no event to wait for: SGLang polls too."""
        until, pause = time.monotonic() + bound, threading.Event()
        while not condition():
            assert time.monotonic() < until, f"not within {bound} s"
            self.cache.check_hicache_events()
            pause.wait(0.002)

    def compute(self, tokens: list[int], seed: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """As a forward pass: KV of these tokens into L1, and from there on by SGLang into L2 and L3."""
        where = self.allocator.alloc(len(tokens))
        random = torch.Generator().manual_seed(seed)
        made = []
        for layer in range(LAYERS):
            pair = tuple(torch.randn(len(tokens), HEADS, DIM, generator=random) for _ in "kv")
            self.kv.k_buffer[layer][where], self.kv.v_buffer[layer][where] = pair
            made.append(pair)
        self.cache.insert(InsertParams(key=key_of(tokens), value=where))
        cache, controller = self.cache, self.controller
        self.pump(
            lambda: (
                not (
                    cache.ongoing_write_through
                    or cache.ongoing_backup
                    or controller.write_queue
                    or controller.ack_write_queue
                )
            )
        )
        return made

    def forget(self, tokens: list[int]) -> None:
        """Evict them from L1 and L2."""
        self.cache.evict(EvictParams(num_tokens=len(tokens)))
        self.cache.evict_host(len(tokens))
        found = self.match(tokens)
        assert (found.device_prefix_len, found.host_hit_length) == (0, 0)

    def hashes(self, tokens: list[int]) -> list[str]:
        """SGLang's page hashes of a sequence."""
        return list(controller_module.get_storage_hash_str(array("q", tokens), None, page_size=PAGE))

    def match(self, tokens: list[int]) -> Any:
        """What of them is in L1 and L2."""
        return self.cache.match_prefix(MatchPrefixParams(key=key_of(tokens)))

    def start_prefetch(self, tokens: list[int]) -> Any:
        """Begin L3 → L2; the handle of the request."""
        self.requests += 1
        handle = CacheRequestHandle(f"r{self.requests}", 0)
        node = self.match(tokens).last_host_node
        last = self.cache.get_last_hash_value(node)
        self.cache.prefetch_from_storage(handle, node, array("q", tokens), last, None, matched_prefix_tokens=[])
        return handle

    def prefetch(self, tokens: list[int]) -> int:
        """L3 → L2: tokens that came."""
        handle = self.start_prefetch(tokens)
        self.pump(lambda: self.cache.check_prefetch_progress(handle))
        return int(self.cache.pop_prefetch_loaded_tokens(handle))

    def load(self, tokens: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """L2 → L1: the KV of the prefix that is there."""
        found = self.match(tokens)
        if found.host_hit_length:
            assert self.cache.load_back(found.best_match_node)
            self.cache.ready_to_load_host_cache()
            self.cache.loading_check()
            found = self.match(tokens)
        where = self.cache.path_device_indices(found.last_device_node)
        return [(self.kv.k_buffer[layer][where], self.kv.v_buffer[layer][where]) for layer in range(LAYERS)]

    def close(self) -> None:
        """Detach the storage, which ends SGLang's threads and closes the store."""
        try:
            detached, message = self.cache.detach_storage_backend()
            assert detached, message
        finally:
            self._parallel.__exit__(None, None, None)


def key_of(tokens: list[int]) -> RadixKey:
    """SGLang's form of a sequence."""
    return RadixKey(array("q", tokens))


def equal(
    ours: list[tuple[torch.Tensor, torch.Tensor]], theirs: list[tuple[torch.Tensor, torch.Tensor]], pages: int
) -> bool:
    """Whether the KV of the first pages is the same in every layer."""
    n = pages * PAGE
    return all(
        len(a[0]) == n and torch.equal(a[0], b[0][:n]) and torch.equal(a[1], b[1][:n])
        for a, b in zip(ours, theirs, strict=True)
    )
