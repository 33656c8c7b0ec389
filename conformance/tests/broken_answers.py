"""Backends that answer wrongly. Each names the case that must catch it in `caught_by`."""

from sound_backend import LIMIT, Sound

from hicache_core.plugin.spec import hookimpl
from hicache_core.types import Outcome


class CountsInsteadOfRun(Sound):
    """exists counts the keys that are there, instead of the run from the start."""

    caught_by = "exists_counts_the_run_from_the_start"

    @hookimpl
    def batch_exists(self, keys, ctx):
        return sum(self.legal(key) and key in self.pages for key in keys)


class AnswersABool(Sound):
    """exists answers True or False for the whole batch."""

    caught_by = "exists_counts_the_run_from_the_start"

    @hookimpl
    def batch_exists(self, keys, ctx):
        return all(self.legal(key) and key in self.pages for key in keys)


class StopsAt64(Sound):
    """exists looks at no more than 64 keys."""

    caught_by = "exists_walks_over_every_position"

    @hookimpl
    def batch_exists(self, keys, ctx):
        return Sound.batch_exists(self, keys[:64], ctx)


class RemembersMisses(Sound):
    """A negative cache that a later set does not clear."""

    caught_by = "a_stored_key_is_seen_at_once"

    def __init__(self, options, context):
        super().__init__(options, context)
        self.missed = set()

    @hookimpl
    def batch_exists(self, keys, ctx):
        run = Sound.batch_exists(self, [k for k in keys if k not in self.missed], ctx)
        self.missed.update(k for k in keys if k not in self.pages)
        return run


class MakesWhatIsAskedFor(Sound):
    """exists of a missing key leaves an entry behind."""

    caught_by = "exists_changes_nothing"

    @hookimpl
    def batch_exists(self, keys, ctx):
        run = Sound.batch_exists(self, keys, ctx)
        if 0 < run < len(keys):
            self.pages.setdefault(keys[run], b"")
        return run


class ContainsIsARun(Sound):
    """contains says False for everything after the first gap."""

    caught_by = "contains_answers_for_each_key"

    @hookimpl
    def batch_contains(self, keys, ctx):
        run = Sound.batch_exists(self, keys, ctx)
        return [n < run for n in range(len(keys))]


class AnswersInItsOwnOrder(Sound):
    """get answers in the order of its index, not in the order of the call."""

    caught_by = "results_follow_the_order_of_the_keys"

    @hookimpl
    def batch_get(self, keys, pages, ctx):
        return [self.get(key, page) for key, page in sorted(zip(keys, pages, strict=True), key=lambda pair: pair[0])]


class RaisesOnAMiss(Sound):
    """get raises KeyError for a missing key."""

    caught_by = "get_of_a_missing_key_is_a_miss"

    def get(self, key, page):
        return self.fill(page, self.pages[key])


class HitsWhatIsMissing(Sound):
    """get fills zeros and says HIT for a key that is not there."""

    caught_by = "get_of_a_missing_key_is_a_miss"

    def get(self, key, page):
        return self.fill(page, self.pages.get(key, bytes(sum(map(len, page)))))


class AnswersNone(Sound):
    """get forgets to return its list."""

    caught_by = "get_returns_the_bytes_that_were_set"

    @hookimpl
    def batch_get(self, keys, pages, ctx):
        Sound.batch_get(self, keys, pages, ctx)


class AnswersBooleans(Sound):
    """set answers True and False instead of outcomes."""

    caught_by = "get_returns_the_bytes_that_were_set"

    @hookimpl
    def batch_set(self, keys, pages, ctx):
        return [bool(outcome) for outcome in Sound.batch_set(self, keys, pages, ctx)]


class SaysHitToASet(Sound):
    """set answers HIT, which only get and delete may."""

    caught_by = "get_returns_the_bytes_that_were_set"

    def set(self, key, page, ctx):
        return Outcome.HIT if Sound.set(self, key, page, ctx) else Outcome.REJECTED


class ShortAnswer(Sound):
    """get answers only for the keys it found."""

    caught_by = "a_miss_leaves_the_destination_alone"

    @hookimpl
    def batch_get(self, keys, pages, ctx):
        return [o for o in Sound.batch_get(self, keys, pages, ctx) if o is not Outcome.MISS] or [Outcome.MISS] * len(
            keys
        )


class DirtiesOnAMiss(Sound):
    """Declares clean_miss, but zeroes the destination before it looks."""

    caught_by = "a_miss_leaves_the_destination_alone"

    def get(self, key, page):
        for buffer in page:
            buffer[:] = bytes(len(buffer))
        return Sound.get(self, key, page)


class ScribblesOnNeighbours(Sound):
    """get writes a byte past the end of its last buffer."""

    caught_by = "get_returns_the_bytes_that_were_set"

    def fill(self, page, data):
        last = page[-1]
        arena = last.obj
        arena[bytes(arena).rindex(bytes(last)) + len(last)] ^= 1
        return Sound.fill(self, page, data)


class FillsWhatItCan(Sound):
    """A stored page shorter than the buffers is a HIT."""

    caught_by = "a_shorter_stored_page_is_corrupt"

    def fill(self, page, data):
        return Sound.fill(self, page, data.ljust(sum(map(len, page)), b"\0"))


class ReadsTheBeginning(Sound):
    """A stored page longer than the buffers is a HIT of its beginning."""

    caught_by = "a_longer_stored_page_is_corrupt"

    def fill(self, page, data):
        return Sound.fill(self, page, data[: sum(map(len, page))])


class DeletesWhatDoesNotFit(Sound):
    """A get with wrong buffers removes the page."""

    caught_by = "a_wrong_length_leaves_the_store_as_it_was"

    def get(self, key, page):
        outcome = Sound.get(self, key, page)
        if outcome is Outcome.CORRUPT:
            del self.pages[key]
        return outcome


class ComparesRegions(Sound):
    """Pages with other region boundaries than when they were stored are CORRUPT."""

    caught_by = "region_boundaries_do_not_matter"

    def __init__(self, options, context):
        super().__init__(options, context)
        self.regions = {}

    def set(self, key, page, ctx):
        self.regions.setdefault(key, len(page))
        return Sound.set(self, key, page, ctx)

    def get(self, key, page):
        wrong = self.regions.get(key, len(page)) != len(page)
        return Outcome.CORRUPT if wrong else Sound.get(self, key, page)


class ForgetsRegionsAfter1024(Sound):
    """One writev call per page: what lies beyond 1,024 regions is not stored."""

    caught_by = "a_page_of_many_regions_comes_back_whole"

    def set(self, key, page, ctx):
        rest = sum(map(len, page[1024:]))
        return Sound.set(self, key, [*page[:1024], bytes(rest)], ctx)


class TextMode(Sound):
    """Opens its files in text mode."""

    caught_by = "bytes_mean_nothing_to_the_store"

    def fill(self, page, data):
        return Sound.fill(self, page, data.replace(b"\r\n", b"\n\n"))


class EmptyIsNone(Sound):
    """An empty batch is answered None."""

    caught_by = "an_empty_batch_is_legal"

    @hookimpl
    def batch_get(self, keys, pages, ctx):
        return Sound.batch_get(self, keys, pages, ctx) or None


class CutsLargeBatches(Sound):
    """Handles the first 1,024 keys of a batch and says MISS to the rest."""

    caught_by = "a_large_batch_is_legal"

    @hookimpl
    def batch_get(self, keys, pages, ctx):
        head = Sound.batch_get(self, keys[:1024], pages[:1024], ctx)
        return head + [Outcome.MISS] * (len(keys) - len(head))


class ConfusesDuplicates(Sound):
    """get goes by a dict of its keys: of duplicates only the last one's buffers are filled."""

    caught_by = "duplicate_keys_are_each_answered"

    @hookimpl
    def batch_get(self, keys, pages, ctx):
        wanted = dict(zip(keys, pages, strict=True))
        outcomes = {key: self.get(key, page) for key, page in wanted.items()}
        return [outcomes[key] for key in keys]


class OneBadAllBad(Sound):
    """One illegal key in a batch, and the whole batch is REJECTED."""

    caught_by = "one_bad_page_spares_its_neighbours"

    @hookimpl
    def batch_get(self, keys, pages, ctx):
        if not all(map(self.legal, keys)):
            return [Outcome.REJECTED] * len(keys)
        return Sound.batch_get(self, keys, pages, ctx)


class CutsLargePages(Sound):
    """A page above max_page_bytes is stored cut, with success."""

    caught_by = "the_largest_page_is_kept_and_a_larger_one_refused"

    def set(self, key, page, ctx):
        whole = b"".join(page)
        return Sound.set(self, key, [whole[:LIMIT]], ctx)


class RefusesLargePages(Sound):
    """Pages of a MiB and more are refused, though max_page_bytes says that they are taken."""

    caught_by = "pages_of_every_size_come_back"

    def set(self, key, page, ctx):
        return Outcome.REJECTED if sum(map(len, page)) > 1 << 20 else Sound.set(self, key, page, ctx)


class KeepsTheLatest256(Sound):
    """No more than 256 pages of a namespace: the first of 300 is gone when the last is stored."""

    caught_by = "a_session_reads_back_what_it_wrote"

    def set(self, key, page, ctx):
        outcome = Sound.set(self, key, page, ctx)
        mine = [k for k in list(self.pages) if self.belongs(k, key.split("/")[0])]
        for old in mine[:-256]:
            del self.pages[old]
        return outcome


class ContainsStopsAt32(Sound):
    """contains looks at 32 keys and says False to the rest."""

    caught_by = "a_session_tells_gaps"

    @hookimpl
    def batch_contains(self, keys, ctx):
        return [n < 32 and self.legal(key) and key in self.pages for n, key in enumerate(keys)]


class ContainsForgetsTheLastOf128(Sound):
    """contains of a full call answers False for its last key."""

    caught_by = "a_window_reaches_back_over_the_cut_of_a_call"

    @hookimpl
    def batch_contains(self, keys, ctx):
        return [n < 127 and self.legal(key) and key in self.pages for n, key in enumerate(keys)]


class ContainsEveryPool(Sound):
    """contains looks for the page in any pool."""

    caught_by = "a_pool_without_bytes_is_never_stored"

    @hookimpl
    def batch_contains(self, keys, ctx):
        return [any(k.split(".")[0] == key.split(".")[0] for k in list(self.pages)) for key in keys]


class ListsNothing(Sound):
    """Declares scan, and leaves it to the core."""

    caught_by = "what_is_not_supported_is_said"

    @hookimpl
    def scan(self, namespace, cursor):
        return None
