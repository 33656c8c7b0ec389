"""Backends that tear, leak or do not let go. Each names the case that must catch it in `caught_by`."""

import os
import threading

from sound_backend import Sound

from hicache_core.plugin.spec import hookimpl
from hicache_core.types import Outcome


class PublishesInHalves(Sound):
    """A key is visible while its second half is still to come, as with a file written in place."""

    caught_by = "a_reader_sees_all_of_a_page_or_nothing"

    def __init__(self, options, context):
        super().__init__(options, context)
        self.looked = threading.Event()

    def set(self, key, page, ctx):
        if not self.legal(key) or key in self.pages:
            return Sound.set(self, key, page, ctx)
        data = b"".join(page)
        half = len(data) // 2
        self.pages[key] = data[:half] + bytes(len(data) - half)
        self.looked.clear()
        self.looked.wait(0.05)
        self.pages[key] = data
        return Outcome.STORED

    def get(self, key, page):
        outcome = Sound.get(self, key, page)
        self.looked.set()
        return outcome


class ReplacesByDeleting(Sound):
    """replace removes the old page before the new one is there."""

    caught_by = "a_reader_sees_the_old_page_or_the_new_one"

    def __init__(self, options, context):
        super().__init__(options, context)
        self.looked = threading.Event()

    def set(self, key, page, ctx):
        if ctx.replace and self.pages.pop(key, None) is not None:
            self.looked.clear()
            self.looked.wait(0.05)
        return Sound.set(self, key, page, ctx)

    def get(self, key, page):
        outcome = Sound.get(self, key, page)
        self.looked.set()
        return outcome


class LastWriterWins(Sound):
    """Looks, then writes, without a lock: several writers of one key are all told STORED."""

    caught_by = "threads_on_one_key_leave_one_whole_page"

    def __init__(self, options, context):
        super().__init__(options, context)
        self.company = threading.Semaphore(0)

    def set(self, key, page, ctx):
        if not self.legal(key):
            return Outcome.REJECTED
        fresh = key not in self.pages
        self.company.release()
        self.company.acquire(timeout=0.05)
        self.company.acquire(timeout=0.05)
        if not fresh and not ctx.replace:
            return Outcome.EXISTS
        self.pages[key] = b"".join(page)
        return Outcome.STORED


class SharesOneBuffer(Sound):
    """All threads write through one staging buffer."""

    caught_by = "threads_on_different_keys_do_not_disturb_each_other"

    def __init__(self, options, context):
        super().__init__(options, context)
        self.staging, self.company = bytearray(), threading.Event()

    def set(self, key, page, ctx):
        if not self.legal(key):
            return Outcome.REJECTED
        self.staging[:] = b"".join(page)
        self.company.set()
        self.company.clear()
        self.company.wait(0.002)
        return Sound.set(self, key, [bytes(self.staging)], ctx)


class TearsWhenRemoving(Sound):
    """delete empties the page before it removes the key."""

    caught_by = "removing_while_reading_tears_nothing"

    def __init__(self, options, context):
        super().__init__(options, context)
        self.looked = threading.Event()

    def remove(self, key):
        if key in self.pages:
            self.pages[key] = bytes(len(self.pages[key]))
            self.looked.clear()
            self.looked.wait(0.05)
        return Sound.remove(self, key)

    def get(self, key, page):
        outcome = Sound.get(self, key, page)
        self.looked.set()
        return outcome


class WritesAfterReturn(Sound):
    """get answers at once, and a thread fills the buffers later."""

    caught_by = "a_call_touches_no_memory_after_it_returned"

    def __init__(self, options, context):
        super().__init__(options, context)
        self.go, self.late = threading.Event(), []

    def get(self, key, page):
        outcome = Sound.get(self, key, page)
        if outcome is Outcome.HIT:
            thread = threading.Thread(target=self.fill_later, args=(page[-1], bytes(page[-1])), daemon=True)
            thread.start()
            self.late.append(thread)
        return outcome

    def fill_later(self, buffer, data):
        self.go.wait(30)
        buffer[:] = data

    @hookimpl
    def close(self):
        self.go.set()


class ReadsAfterReturn(Sound):
    """set answers at once and reads the source when the key is asked for."""

    caught_by = "a_call_touches_no_memory_after_it_returned"

    def set(self, key, page, ctx):
        outcome = Sound.set(self, key, page, ctx)
        if outcome is Outcome.STORED:
            self.pages[key] = _Later(page)
        return outcome

    def get(self, key, page):
        stored = self.pages.get(key)
        if isinstance(stored, _Later):
            self.pages[key] = b"".join(stored.page)
        return Sound.get(self, key, page)


class _Later:
    def __init__(self, page):
        self.page = page

    def __len__(self):
        return sum(map(len, self.page))


class KeepsBuffers(Sound):
    """Holds the last page's buffers until the process ends."""

    caught_by = "close_lets_go_of_lent_memory"

    @hookimpl
    def batch_get(self, keys, pages, ctx):
        self.last = [memoryview(b) for page in pages for b in page]
        return Sound.batch_get(self, keys, pages, ctx)


class LeaksADescriptor(Sound):
    """Each get opens a file and does not close it."""

    caught_by = "a_call_leaks_no_descriptor"
    leaked: list = []  # noqa: RUF012 - the tests close what is in here

    def get(self, key, page):
        self.leaked.append(os.open("/dev/null", os.O_RDONLY))
        return Sound.get(self, key, page)


class ForgetsItsDescriptors(Sound):
    """Opens two files when it is opened, and close closes neither."""

    caught_by = "close_leaves_no_descriptor"
    leaked: list = []  # noqa: RUF012 - the tests close what is in here

    def __init__(self, options, context):
        super().__init__(options, context)
        self.leaked += [os.open("/dev/null", os.O_RDONLY) for _ in range(2)]


class StartsThreads(Sound):
    """Each exists starts a thread that never ends."""

    caught_by = "a_store_starts_no_thread_per_call"
    end = threading.Event()

    @hookimpl
    def batch_exists(self, keys, ctx):
        threading.Thread(target=self.end.wait, args=(60,), daemon=True).start()
        return Sound.batch_exists(self, keys, ctx)


class LeavesAThread(Sound):
    """Its background thread goes on after close."""

    caught_by = "close_leaves_no_thread"
    end = threading.Event()

    def __init__(self, options, context):
        super().__init__(options, context)
        threading.Thread(target=self.end.wait, args=(60,), daemon=True, name="janitor").start()


class ClosesOnce(Sound):
    """The second close raises."""

    caught_by = "close_is_idempotent"
    closed = False

    @hookimpl
    def close(self):
        if self.closed:
            raise ValueError("already closed")
        self.closed = True


class CloseWaitsForEver(Sound):
    """close waits until no call is on its way, and a call waits for close."""

    caught_by = "closing_while_others_call_does_not_hang"

    def __init__(self, options, context):
        super().__init__(options, context)
        self.closing, self.inside = False, threading.Lock()

    @hookimpl
    def batch_get(self, keys, pages, ctx):
        with self.inside:
            if self.closing:
                self.inside.acquire(timeout=20)
            return Sound.batch_get(self, keys, pages, ctx)

    @hookimpl
    def close(self):
        self.closing = True
        with self.inside:
            return None


class KeepsEveryAnswer(Sound):
    """Remembers the outcomes of every call, for ever."""

    caught_by = "repeated_calls_leave_no_objects"

    def __init__(self, options, context):
        super().__init__(options, context)
        self.history = []

    @hookimpl
    def batch_get(self, keys, pages, ctx):
        outcomes = Sound.batch_get(self, keys, pages, ctx)
        self.history.append({key: [outcome, bytearray(64)] for key, outcome in zip(keys, outcomes, strict=True)})
        return outcomes


class KeepsEveryPage(Sound):
    """A copy of every page that was read stays in memory."""

    caught_by = "repeated_calls_leave_no_pages_in_memory"

    def __init__(self, options, context):
        super().__init__(options, context)
        self.copies = []

    def fill(self, page, data):
        self.copies.append(bytearray(data))
        return Sound.fill(self, page, data)


class CloseRaises(Sound):
    """close complains about pages that it still holds."""

    caught_by = "a_closed_session_refuses_and_leaves_nothing"

    @hookimpl
    def close(self):
        if self.pages:
            raise RuntimeError(f"{len(self.pages)} pages are still here")


class ServesOneCaller(SharesOneBuffer):
    """One staging buffer for all callers, under a session too."""

    caught_by = "sessions_serve_many_callers"


class SealApart(Sound):
    """The seal is stored apart from its page: whoever reads between the two finds one's seal on the other's bytes."""

    caught_by = "a_reader_sees_the_old_page_or_the_new_one"

    def __init__(self, options, context):
        super().__init__(options, context)
        self.looked = threading.Event()

    def set(self, key, page, ctx):
        old = self.pages.get(key)
        if old is not None and ctx.replace:
            seal = bytes(page[0])
            self.pages[key] = seal + old[len(seal) :]
            self.looked.clear()
            self.looked.wait(0.05)
        return Sound.set(self, key, page, ctx)

    def get(self, key, page):
        outcome = Sound.get(self, key, page)
        self.looked.set()
        return outcome


class RemovesWhatLooksDamaged(Sound):
    """A page whose seal does not look right to this reader is removed by get, though the store is healthy."""

    caught_by = "bytes_mean_nothing_to_the_store"

    def get(self, key, page):
        outcome = Sound.get(self, key, page)
        if outcome is Outcome.HIT and bytes(page[0][:4]) == bytes(4):
            self.pages.pop(key, None)
            return Outcome.CORRUPT
        return outcome
