"""A small backend with hooks of its own for v1, v2 and registration, for the broken ones to depart from."""

from __future__ import annotations

import ctypes
from collections import Counter

import msgspec
import numpy as np
from sound_backend import Sound

from hicache_core.plugin.spec import hookimpl
from hicache_core.types import Outcome, PoolHitPolicy, PoolName, PoolTransferResult


class Native(Sound):
    """`Sound`, with pages moved straight from and into lent pools by their addresses."""

    capabilities = msgspec.structs.replace(
        Sound.capabilities, zero_copy_v1=True, native_v2=True, registration="region", alignment=8
    )

    def __init__(self, options, context):
        super().__init__(options, context)
        self.views, self.lent = {}, Counter()

    # -- memory that is lent

    @hookimpl
    def register_host_pool(self, view):
        if view.name in self.views:
            raise ValueError(f"a pool named {view.name} is lent already; unregister it first")
        self.views[view.name] = view

    @hookimpl
    def unregister_host_pool(self, view):
        if self.views.get(view.name) is not view:
            raise ValueError(f"pool {view.name} is not lent")
        del self.views[view.name]

    @hookimpl
    def register_region(self, buffer):
        self.lent[_place(buffer)] += 1

    @hookimpl
    def unregister_region(self, buffer):
        if not self.lent[_place(buffer)]:
            raise ValueError(f"{len(buffer)} bytes are taken back, but were never lent")
        self.lent[_place(buffer)] -= 1

    @hookimpl
    def close(self):
        self.views.clear()
        self.lent.clear()

    # -- v1

    def view(self, name):
        return self.views[name]

    def spans(self, name, slots):
        """(address, bytes) of each region of each page."""
        pointers, sizes = self.view(name).regions(np.ascontiguousarray(slots))
        return [list(zip(p, s, strict=True)) for p, s in zip(pointers.tolist(), sizes.tolist(), strict=True)]

    def load(self, key, seal, spans):
        if not self.legal(key):
            return Outcome.REJECTED
        data = self.pages.get(self.name(key))
        if data is None:
            return Outcome.MISS
        if len(data) != len(seal) + sum(size for _, size in spans):
            return Outcome.CORRUPT
        self.scatter(data, seal, spans)
        return Outcome.HIT

    def scatter(self, data, seal, spans):
        at = len(seal)
        seal[:] = data[:at]
        for address, size in spans:
            ctypes.memmove(address, data[at : at + size], size)
            at += size

    def gather(self, spans):
        return [ctypes.string_at(address, size) for address, size in spans]

    @hookimpl
    def batch_get_v1(self, keys, host_indices, ctx):
        return self.load_all(PoolName.KV, keys, host_indices, ctx.seals)

    @hookimpl
    def batch_set_v1(self, keys, host_indices, ctx):
        return self.save_all(PoolName.KV, keys, host_indices, ctx.seals, ctx)

    def load_all(self, name, keys, slots, seals):
        if name not in self.views:
            return [Outcome.UNAVAILABLE] * len(keys)
        spans = self.spans(name, slots)
        return [self.load(*page) for page in zip(keys, seals, spans, strict=True)]

    def save_all(self, name, keys, slots, seals, ctx):
        if name not in self.views:
            return [Outcome.UNAVAILABLE] * len(keys)
        spans = self.spans(name, slots)
        return [
            self.set(key, [seal, *self.gather(some)], ctx) for key, seal, some in zip(keys, seals, spans, strict=True)
        ]

    # -- v2

    @hookimpl
    def batch_exists_v2(self, keys, pool_transfers, ctx):
        run = Sound.batch_exists(self, keys, ctx)
        lengths = [p for p in range(1, run + 1) if all(self.suffices(t, p) for t in pool_transfers)]
        return self.result(lengths)

    def result(self, lengths):
        return PoolTransferResult(max(lengths, default=0), lengths)

    def suffices(self, transfer, p):
        first = 0 if transfer.policy is PoolHitPolicy.ALL_PAGES else max(0, p - transfer.trailing)
        return all(key in self.pages for key in transfer.keys[first:p])

    @hookimpl
    def batch_get_v2(self, transfers, ctx):
        return {t.name: self.load_all(t.name, t.keys, t.slots, ctx.seals[t.name]) for t in transfers}

    @hookimpl
    def batch_set_v2(self, transfers, ctx):
        return {t.name: self.save_all(t.name, t.keys, t.slots, ctx.seals[t.name], ctx) for t in transfers}


def _place(buffer):
    view = np.frombuffer(buffer, np.uint8)
    return view.ctypes.data, view.nbytes
