"""Backends that are wrong about the pools of hybrid models. Each names the case that must catch it."""

from native_backend import Native

from hicache_core.plugin.spec import hookimpl
from hicache_core.types import Outcome, PoolHitPolicy, PoolName, PoolTransferResult


class TrailingAsAll(Native):
    """TRAILING_PAGES is treated as ALL_PAGES."""

    caught_by = "a_pool_with_a_window_needs_only_its_window"

    def suffices(self, transfer, p):
        return all(key in self.pages for key in transfer.keys[:p])


class AllAsTrailing(Native):
    """ALL_PAGES is treated as a window of one page."""

    caught_by = "a_hole_in_a_pool_that_needs_all_pages_ends_the_prefix"

    def suffices(self, transfer, p):
        first = max(0, p - transfer.trailing)
        return all(key in self.pages for key in transfer.keys[first:p])


class WindowOffByOne(Native):
    """The window is one page too long."""

    caught_by = "a_pool_with_a_window_needs_only_its_window"

    def suffices(self, transfer, p):
        first = 0 if transfer.policy is PoolHitPolicy.ALL_PAGES else max(0, p - transfer.trailing - 1)
        return all(key in self.pages for key in transfer.keys[first:p])


class TellsOnlyTheLargest(Native):
    """Only the largest prefix is told, as if no shorter one could be restored."""

    caught_by = "every_restorable_prefix_is_told"

    def result(self, lengths):
        return PoolTransferResult(max(lengths, default=0), lengths[-1:])


class TellsEveryLength(Native):
    """Every length up to the largest is said to be restorable."""

    caught_by = "every_restorable_prefix_is_told"

    def result(self, lengths):
        return PoolTransferResult(max(lengths, default=0), None)


class IgnoresSidePools(Native):
    """exists_v2 looks at KV alone."""

    caught_by = "a_hole_in_a_pool_that_needs_all_pages_ends_the_prefix"

    def suffices(self, transfer, p):
        return True


class LooksAtTheFirstPool(Native):
    """exists_v2 looks at the first side pool alone."""

    caught_by = "every_restorable_prefix_is_told"

    @hookimpl
    def batch_exists_v2(self, keys, pool_transfers, ctx):
        return Native.batch_exists_v2(self, keys, pool_transfers[:1], ctx)


class SwapsPools(Native):
    """get_v2 gives the answers of a call to its pools in alphabetical order."""

    caught_by = "a_miss_in_one_pool_does_not_disturb_the_others"

    @hookimpl
    def batch_get_v2(self, transfers, ctx):
        answers = list(Native.batch_get_v2(self, transfers, ctx).values())
        return dict(zip(sorted((t.name for t in transfers), key=str), answers, strict=True))


class WritesEveryPoolToKv(Native):
    """get_v2 fills the pages of every pool into the KV pool."""

    caught_by = "pools_of_one_call_have_their_own_bytes"

    def view(self, name):
        return self.views[PoolName.KV]


class StopsAtTheFirstMiss(Native):
    """get_v2 gives up the rest of a pool after its first miss."""

    caught_by = "a_miss_in_one_pool_does_not_disturb_the_others"

    @hookimpl
    def batch_get_v2(self, transfers, ctx):
        answers = {}
        for name, outcomes in Native.batch_get_v2(self, transfers, ctx).items():
            first = next((i for i, o in enumerate(outcomes) if not o), len(outcomes))
            answers[name] = outcomes[:first] + [Outcome.MISS] * (len(outcomes) - first)
        return answers


class ForgetsThePool(Native):
    """The pool's name is cut off the key."""

    caught_by = "the_pool_is_part_of_the_key"

    def name(self, key):
        for pool in ("indexer", "swa", "mamba"):
            key = key.replace(f".{pool}.", ".kv.")
        return key

    @hookimpl
    def batch_exists_v2(self, keys, pool_transfers, ctx):
        return None


class AnswersOnlyFullPools(Native):
    """set_v2 leaves out a pool whose pages were all there."""

    caught_by = "a_miss_in_one_pool_does_not_disturb_the_others"

    @hookimpl
    def batch_set_v2(self, transfers, ctx):
        answers = Native.batch_set_v2(self, transfers, ctx)
        return {name: outcomes for name, outcomes in answers.items() if Outcome.EXISTS not in outcomes}


class AlwaysRestoresOne(Native):
    """Says that the first page can be restored, whatever is there."""

    caught_by = "nothing_stored_restores_nothing"

    def result(self, lengths):
        return Native.result(self, lengths or [1])


class SaysExistsByV2(Native):
    """set_v2 answers EXISTS for what it has just stored."""

    caught_by = "empty_transfers_are_legal"

    @hookimpl
    def batch_set_v2(self, transfers, ctx):
        return {name: [Outcome.EXISTS] * len(o) for name, o in Native.batch_set_v2(self, transfers, ctx).items()}


class RemembersWhatV2Stored(Native):
    """set_v2 keeps a list of what it stored, and does not store again what was deleted since."""

    caught_by = "random_histories_through_pools_agree_with_a_model"

    def __init__(self, options, context):
        super().__init__(options, context)
        self.done = set()

    @hookimpl
    def batch_set_v2(self, transfers, ctx):
        answers = Native.batch_set_v2(self, [t for t in transfers if not self.known(t)], ctx)
        for transfer in transfers:
            answers.setdefault(transfer.name, [Outcome.EXISTS] * len(transfer.keys))
            self.done.update(transfer.keys)
        return answers

    def known(self, transfer):
        return self.done.issuperset(transfer.keys)
