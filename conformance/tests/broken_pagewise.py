"""Backends whose hooks are marked `pagewise` and break that promise, and the sound one they depart from."""

from contextlib import suppress

from sound_backend import Sound

from hicache_core.plugin.spec import hookimpl, pagewise
from hicache_core.types import Outcome


class Pagewise(Sound):
    """`Sound`, with the session told of each page as it comes to it."""

    @hookimpl
    @pagewise
    def batch_get(self, keys, pages, ctx):
        return [self.get_told(key, page, n, ctx) for n, (key, page) in enumerate(zip(keys, pages, strict=True))]

    @hookimpl
    @pagewise
    def batch_set(self, keys, pages, ctx):
        return [self.set_told(key, page, n, ctx) for n, (key, page) in enumerate(zip(keys, pages, strict=True))]

    def get_told(self, key, page, n, ctx):
        outcome = self.get(key, page)
        if outcome is Outcome.HIT:
            ctx.verify_page(n)
        return outcome

    def set_told(self, key, page, n, ctx):
        ctx.seal_page(n)
        return self.set(key, page, ctx)


class SealsTooLate(Pagewise):
    """Reads the page, then calls ctx.seal_page: what is stored has the seal of another page."""

    caught_by = "a_page_is_sealed_before_it_is_read"

    def set_told(self, key, page, n, ctx):
        joined = [memoryview(b"".join(page))]
        ctx.seal_page(n)
        return self.set(key, joined, ctx)


class SealsTheFirstOnly(Pagewise):
    """Calls ctx.seal_page for the first page of a batch."""

    caught_by = "a_page_is_sealed_before_it_is_read"

    def set_told(self, key, page, n, ctx):
        if n == 0:
            ctx.seal_page(n)
        return self.set(key, page, ctx)


class SealsItsNeighbour(Pagewise):
    """Counts pages from one."""

    caught_by = "a_page_is_sealed_before_it_is_read"

    @hookimpl
    @pagewise
    def batch_set(self, keys, pages, ctx):
        outcomes = []
        for n, (key, page) in enumerate(zip(keys, pages, strict=True)):
            ctx.seal_page((n + 1) % len(keys))
            outcomes.append(self.set(key, page, ctx))
        return outcomes


class StoresWhatWasNotSealed(Pagewise):
    """Goes on where ctx.seal_page raises."""

    caught_by = "a_page_is_sealed_before_it_is_read"

    def set_told(self, key, page, n, ctx):
        with suppress(Exception):
            ctx.seal_page(n)
        return self.set(key, page, ctx)


class VerifiesTooSoon(Pagewise):
    """Calls ctx.verify_page when the read was sent, not when it came back."""

    caught_by = "a_page_is_in_place_when_it_is_verified"

    def get_told(self, key, page, n, ctx):
        ctx.verify_page(n)
        return self.get(key, page)


class TouchesWhatWasVerified(Pagewise):
    """Verifies a page, and then puts the last byte in its place once more: another one."""

    caught_by = "a_page_is_in_place_when_it_is_verified"

    def get_told(self, key, page, n, ctx):
        outcome = Pagewise.get_told(self, key, page, n, ctx)
        if outcome is Outcome.HIT and n == 4:
            page[-1][-1] ^= 1
        return outcome


class VerifiesNothing(Pagewise):
    """Is marked, and never calls ctx.verify_page."""

    caught_by = "a_page_is_in_place_when_it_is_verified"

    def get_told(self, key, page, n, ctx):
        return self.get(key, page)
