"""Backends that are wrong about lent pools. Each names the case that must catch it in `caught_by`."""

import ctypes

import msgspec
import numpy as np
from native_backend import Native

from hicache_core.plugin.spec import hookimpl
from hicache_core.types import Outcome, PoolName


class WritesTheNextSlot(Native):
    """get_v1 counts slots from 1."""

    caught_by = "every_layout_of_every_pool_is_carried"

    @hookimpl
    def batch_get_v1(self, keys, host_indices, ctx):
        count = self.view(PoolName.KV).num_pages
        return self.load_all(PoolName.KV, keys, (host_indices + 1) % count, ctx.seals)


class SortsTheSlots(Native):
    """get_v1 sorts the slots to read in order, and forgets that the keys go with them."""

    caught_by = "host_indices_come_in_any_order"

    @hookimpl
    def batch_get_v1(self, keys, host_indices, ctx):
        return self.load_all(PoolName.KV, keys, np.sort(host_indices), ctx.seals)


class TakesTheFirstSlotForAll(Native):
    """set_v1 takes the slots for one run that begins at the first."""

    caught_by = "host_indices_come_in_any_order"

    @hookimpl
    def batch_set_v1(self, keys, host_indices, ctx):
        first, count = int(host_indices[0]), self.view(PoolName.KV).num_pages
        run = (first + np.arange(len(keys))) % count
        return self.save_all(PoolName.KV, keys, run, ctx.seals, ctx)


class WritesPastThePage(Native):
    """Each region is written with 8 bytes too many: the neighbour's first."""

    caught_by = "every_layout_of_every_pool_is_carried"

    def scatter(self, data, seal, spans):
        Native.scatter(self, data, seal, spans)
        address, size = spans[-1]
        ctypes.memset(address + size, 0, 8)


class KnowsOneRegion(Native):
    """Writes a page as one run from its first region on, as if every layout were whole pages."""

    caught_by = "every_layout_of_every_pool_is_carried"

    def scatter(self, data, seal, spans):
        whole = sum(size for _, size in spans)
        room = self.room(spans)
        Native.scatter(self, data[: len(seal) + min(whole, room)], seal, [(spans[0][0], min(whole, room))])

    def room(self, spans):
        buffer = self.view(PoolName.KV).buffer
        return buffer.ctypes.data + buffer.nbytes - spans[0][0]


class ForgetsTheLastRegion(Native):
    """V of the last layer stays as it was."""

    caught_by = "every_layout_of_every_pool_is_carried"

    def scatter(self, data, seal, spans):
        Native.scatter(self, data, seal, spans[:-1] or spans)


class StoresRegionsBackwards(Native):
    """v1 stores the regions of a page in another order than buffers do; it reads them back itself."""

    caught_by = "every_path_reads_what_any_path_wrote"

    def spans(self, name, slots):
        return [page[::-1] for page in Native.spans(self, name, slots)]


class NamesByPath(Native):
    """v1 keeps its pages under names of its own."""

    caught_by = "every_path_reads_what_any_path_wrote"

    @hookimpl
    def batch_set_v1(self, keys, host_indices, ctx):
        return self.save_all(PoolName.KV, [f"{key}.v1" for key in keys], host_indices, ctx.seals, ctx)

    @hookimpl
    def batch_get_v1(self, keys, host_indices, ctx):
        return self.load_all(PoolName.KV, [f"{key}.v1" for key in keys], host_indices, ctx.seals)


class ClearsTheSlotFirst(Native):
    """Declares clean_miss, but v1 zeroes the slot before it looks."""

    caught_by = "a_missed_slot_is_not_published_and_its_neighbours_are_whole"

    def load(self, key, seal, spans):
        for address, size in spans:
            ctypes.memset(address, 0, size)
        return Native.load(self, key, seal, spans)


class CountsOnlyHits(Native):
    """v1 lays the hits of a batch into its first slots, one after another."""

    caught_by = "a_missed_slot_is_not_published_and_its_neighbours_are_whole"

    @hookimpl
    def batch_get_v1(self, keys, host_indices, ctx):
        there = [key in self.pages for key in keys]
        hits = iter(
            self.load_all(
                PoolName.KV, [k for k in keys if k in self.pages], host_indices[: sum(there)], ctx.seals[: sum(there)]
            )
        )
        return [next(hits) if yes else Outcome.MISS for yes in there]


class ReadsWhatFitsByV1(Native):
    """v1 does not compare lengths: a longer page is cut."""

    caught_by = "v1_keeps_the_rules_of_get_and_set"

    def load(self, key, seal, spans):
        data = self.pages.get(key)
        if data is None:
            return Outcome.MISS
        self.scatter(data, seal, spans)
        return Outcome.HIT


class SharesTheSlots(Native):
    """The slots of the current call are kept in the backend: a call of another thread takes them."""

    caught_by = "threads_share_a_registered_pool"

    @hookimpl
    def batch_get_v1(self, keys, host_indices, ctx):
        self.slots = host_indices
        self.wait()
        return self.load_all(PoolName.KV, keys, self.slots, ctx.seals)

    def wait(self):
        import threading

        threading.Event().wait(0.002)


class ReadsTheSlotLater(Native):
    """set_v1 remembers the addresses and reads them when the key is asked for."""

    caught_by = "v1_touches_no_memory_after_it_returned"

    def __init__(self, options, context):
        super().__init__(options, context)
        self.later = {}

    @hookimpl
    def batch_set_v1(self, keys, host_indices, ctx):
        outcomes = Native.batch_set_v1(self, keys, host_indices, ctx)
        for key, some in zip(keys, self.spans(PoolName.KV, host_indices), strict=True):
            self.later[key] = (len(ctx.seals[0]), some)
        return outcomes

    def load(self, key, seal, spans):
        if key in self.later:
            length, some = self.later.pop(key)
            self.pages[key] = self.pages[key][:length] + b"".join(self.gather(some))
        return Native.load(self, key, seal, spans)


class CannotLendAgain(Native):
    """A pool's name is taken for ever."""

    caught_by = "a_pool_can_be_lent_again"

    @hookimpl
    def unregister_host_pool(self, view):
        return None


class KeepsTheFirstPool(Native):
    """A pool lent under a name that was lent before is ignored: the old memory is used."""

    caught_by = "a_pool_can_be_lent_again"

    @hookimpl
    def register_host_pool(self, view):
        self.views.setdefault(view.name, view)

    @hookimpl
    def unregister_host_pool(self, view):
        return None


class RefusesWithoutAWord(Native):
    """A pool that is lent twice raises ValueError()."""

    caught_by = "lending_twice_is_harmless_or_a_clear_error"

    @hookimpl
    def register_host_pool(self, view):
        if view.name in self.views:
            raise ValueError
        self.views[view.name] = view


class ForgetsOnTheSecondTime(Native):
    """Lending a pool twice takes it back."""

    caught_by = "lending_twice_is_harmless_or_a_clear_error"

    @hookimpl
    def register_host_pool(self, view):
        if self.views.pop(view.name, None) is None:
            self.views[view.name] = view


class CloseWantsItsPoolsBack(Native):
    """close raises while a pool is lent."""

    caught_by = "closing_with_a_lent_pool_lets_go_of_it"

    @hookimpl
    def close(self):
        if self.views:
            raise ValueError(f"still lent: {list(self.views)}")


class LeaksRegistrations(Native):
    """Every pool that was ever lent is kept, as an SDK keeps memory that is not deregistered."""

    caught_by = "a_pool_that_was_taken_back_is_held_by_no_one"

    def __init__(self, options, context):
        super().__init__(options, context)
        self.ever = []

    @hookimpl
    def register_host_pool(self, view):
        self.ever.append(view.buffer)
        Native.register_host_pool(self, view)


class KeepsPoolsAfterClose(Native):
    """close does not let go of the pools."""

    caught_by = "closing_with_a_lent_pool_lets_go_of_it"

    @hookimpl
    def close(self):
        type(self).kept = getattr(type(self), "kept", []) + [view.buffer for view in self.views.values()]
        Native.close(self)


class AnswersGarbageWithoutAPool(Native):
    """v1 without its pool answers HIT and fills nothing."""

    caught_by = "taking_a_pool_back_while_calls_run_harms_nothing"

    def load_all(self, name, keys, slots, seals):
        views, self.views = self.views, dict(self.views)
        if name not in views:
            return [Outcome.HIT] * len(keys)
        return Native.load_all(self, name, keys, slots, seals)


class AllocatesTooLittle(Native):
    """The store's allocator gives memory that is not aligned."""

    caught_by = "memory_of_the_stores_allocator_serves_as_a_pool"

    @hookimpl
    def allocate_host_memory(self, nbytes, alignment):
        whole = memoryview(bytearray(nbytes + 2 * alignment))
        address = np.frombuffer(whole, np.uint8).ctypes.data
        at = (-address) % alignment + 8
        return whole[at : at + nbytes]


class TakesAnyRegionTwice(Native):
    """register_host_pool registers its regions with register_region's books: unregister of them fails later."""

    caught_by = "what_is_lent_is_taken_back"

    @hookimpl
    def unregister_region(self, buffer):
        raise ValueError("this region was never lent")


class SpillsUnderASession(WritesPastThePage):
    """The same, under a session that cannot see it: the seal is about the page, not about its neighbour."""

    caught_by = "pages_of_a_host_pool_are_the_same_pages"


class MisspellsALayout(Native):
    """Declares a layout that there is not."""

    capabilities = msgspec.structs.replace(Native.capabilities, layouts=("page_first", "page_frist"))
    caught_by = "a_layout_that_is_not_taken_is_refused"
