"""Backends that store, name or remove wrongly. Each names the case that must catch it in `caught_by`."""

import re
import threading

from sound_backend import Sound

from hicache_core.plugin.spec import hookimpl
from hicache_core.types import Outcome


class SaysStored(Sound):
    """Every fifth set answers STORED and does nothing."""

    caught_by = "success_means_stored"

    def __init__(self, options, context):
        super().__init__(options, context)
        self.calls = 0

    def set(self, key, page, ctx):
        self.calls += 1
        return Outcome.STORED if self.calls % 5 == 0 else Sound.set(self, key, page, ctx)


class DropsTheLastPage(Sound):
    """The last page of a batch of several is answered, but not stored."""

    caught_by = "every_page_of_a_batch_is_stored_and_read"

    @hookimpl
    def batch_set(self, keys, pages, ctx):
        if len(keys) < 2:
            return Sound.batch_set(self, keys, pages, ctx)
        return [*Sound.batch_set(self, keys[:-1], pages[:-1], ctx), Outcome.STORED]


class NeverSaysExists(Sound):
    """Declares reports_exists, and answers STORED to every set."""

    caught_by = "a_new_key_is_stored_and_a_known_one_exists"

    def set(self, key, page, ctx):
        outcome = Sound.set(self, key, page, ctx)
        return Outcome.STORED if outcome is Outcome.EXISTS else outcome


class OverwritesInPlace(Sound):
    """A plain set of an existing key puts the new bytes in the old one's place."""

    caught_by = "setting_an_existing_key_keeps_the_old_bytes"

    def set(self, key, page, ctx):
        outcome = Sound.set(self, key, page, ctx)
        if outcome is Outcome.EXISTS:
            self.pages[key] = b"".join(page)
        return outcome


class ReplacesTheFirst(Sound):
    """replace works for the first page of a batch; the others are answered STORED and kept."""

    caught_by = "replace_swaps_the_bytes"

    @hookimpl
    def batch_set(self, keys, pages, ctx):
        if not ctx.replace:
            return Sound.batch_set(self, keys, pages, ctx)
        outcomes = Sound.batch_set(self, keys[:1], pages[:1], ctx)
        for key, page in zip(keys[1:], pages[1:], strict=True):
            self.pages.setdefault(key, b"".join(page))
        return outcomes + [Outcome.STORED] * (len(keys) - 1)


class ClaimsThenWrites(Sound):
    """Enters the key before it has the bytes: a set that fails leaves it behind, and the next one says EXISTS."""

    caught_by = "a_failed_set_leaves_no_trace"

    def set(self, key, page, ctx):
        if not self.legal(key):
            return Outcome.REJECTED
        if key in self.pages and not ctx.replace:
            return Outcome.EXISTS
        self.pages[key] = b""
        return Sound.set(self, key, page, _Replacing)


class _Replacing:
    replace = True


class FailsTheSecondTime(Sound):
    """Setting a page that is there already is UNAVAILABLE the third time."""

    caught_by = "repeating_a_call_changes_nothing"

    def __init__(self, options, context):
        super().__init__(options, context)
        self.seen = {}

    def set(self, key, page, ctx):
        self.seen[key] = self.seen.get(key, 0) + 1
        return Outcome.UNAVAILABLE if self.seen[key] == 3 else Sound.set(self, key, page, ctx)


class EncryptsInPlace(Sound):
    """set changes the engine's live page while it stores it."""

    caught_by = "set_does_not_change_its_source"

    def set(self, key, page, ctx):
        outcome = Sound.set(self, key, page, ctx)
        page[-1][:1] = bytes([page[-1][0] ^ 1])
        return outcome


class MixesDuplicates(Sound):
    """A key twice in one set gets the first page's beginning and the second one's end."""

    caught_by = "duplicate_keys_in_a_set_store_one_page"

    @hookimpl
    def batch_set(self, keys, pages, ctx):
        outcomes = Sound.batch_set(self, keys, pages, ctx)
        for key, page in zip(keys, pages, strict=True):
            if keys.count(key) > 1:
                self.pages[key] = self.pages[key][:70] + b"".join(page)[70:]
        return outcomes


class FoldsCase(Sound):
    """Keys are folded to lower case, as by a case-insensitive file system."""

    caught_by = "an_upper_case_key_is_not_its_lower_case_twin"

    def legal(self, key):
        return Sound.legal(self, key.lower())

    def name(self, key):
        return key.lower()


class CutsKeysAt64(Sound):
    """Only 64 characters after the namespace count."""

    caught_by = "a_long_common_beginning_does_not_make_keys_equal"

    def name(self, key):
        namespace, slash, tail = key.partition("/")
        return namespace + slash + tail[:64]


class CutsKeysAt199(Sound):
    """The 200th character does not count."""

    caught_by = "keys_of_200_characters_are_told_apart"

    def name(self, key):
        return key[:199]


class JoinsSegments(Sound):
    """A slash becomes a dash, so "a/b" and "a-b" are one."""

    caught_by = "every_legal_key_is_its_own"

    def name(self, key):
        namespace, slash, tail = key.partition("/")
        return namespace + slash + tail.replace("/", "-")


class DirectoriesInTheWay(Sound):
    """As a flat directory tree: after "a" there can be no "a/b"."""

    caught_by = "a_key_and_a_longer_path_are_both_legal"

    def set(self, key, page, ctx):
        parts = key.split("/")
        above = ["/".join(parts[:n]) for n in range(1, len(parts))]
        return Outcome.REJECTED if any(name in self.pages for name in above) else Sound.set(self, key, page, ctx)


class TakesAnyKey(Sound):
    """Keys are not looked at."""

    caught_by = "an_illegal_key_touches_nothing"

    def legal(self, key):
        return True


class AsciiOnly(Sound):
    r"""The rule written with \w, re.match and $: digits and letters of other scripts and a line end pass."""

    caught_by = "an_illegal_key_touches_nothing"

    def legal(self, key):
        return (
            re.match(r"^[\w./-]{1,200}$", key) is not None
            and key.lower() == key
            and Sound.legal(self, "".join(c for c in key if c.isascii() and c != "\n"))
        )


class IgnoresNamespaces(Sound):
    """The namespace is cut off."""

    caught_by = "namespaces_are_apart"

    def name(self, key):
        return key.partition("/")[2] or key


class SharesOneNamespace(Sound):
    """Each instance stores under the namespace of whoever opened the store first."""

    caught_by = "two_instances_with_two_namespaces_share_nothing"
    first = None

    def name(self, key):
        cls = type(self)
        cls.first = cls.first or self.context.namespace
        return key.replace(self.context.namespace, cls.first)


class ClearsByPrefix(Sound):
    """clear("ab") takes "abc/…" too."""

    caught_by = "clear_removes_only_its_namespace"

    def belongs(self, key, namespace):
        return bool(namespace) and key.startswith(namespace)


class ClearsAnything(Sound):
    """clear("") and clear("..") empty the store, as a path join would."""

    caught_by = "clear_and_scan_refuse_a_name_outside_the_rule"

    def belongs(self, key, namespace):
        return namespace in ("", ".", "..") or Sound.belongs(self, key, namespace)


class KeepsWhatItDeletes(Sound):
    """delete answers HIT and removes nothing."""

    caught_by = "delete_does_what_it_declares"

    def remove(self, key):
        return Outcome.HIT if key in self.pages else Outcome.MISS


class DeletesBelow(Sound):
    """delete("a") takes "a/b" with it, as rmtree would."""

    caught_by = "delete_takes_no_more_than_its_key"

    def remove(self, key):
        for below in [k for k in self.pages if k.startswith(key + "/")]:
            del self.pages[below]
        return Sound.remove(self, key)


class ScanTellsPayload(Sound):
    """scan leaves the seal out of the sizes."""

    caught_by = "scan_lists_what_is_stored"

    @hookimpl
    def scan(self, namespace, cursor):
        found, cursor = Sound.scan(self, namespace, cursor)
        return [(key, nbytes - 64, when) for key, nbytes, when in found], cursor


class ScanForgetsTheRest(Sound):
    """scan stops after its first page."""

    caught_by = "scan_comes_to_an_end_over_many_keys"

    @hookimpl
    def scan(self, namespace, cursor):
        return Sound.scan(self, namespace, cursor)[0], None


class CountsBytesAsked(Sound):
    """stats counts the buffers of every get, hit or not."""

    caught_by = "stats_count_bytes_moved"

    def get(self, key, page):
        self.read_bytes += sum(map(len, page))
        return Sound.get(self, key, page)


class CountsBytesOffered(Sound):
    """stats counts the buffers of every set, stored or not."""

    caught_by = "stats_do_not_count_what_was_not_written"

    def set(self, key, page, ctx):
        self.written_bytes += sum(map(len, page))
        return Sound.set(self, key, page, ctx)


class ClearForgetsTheCount(Sound):
    """clear removes one key of a namespace too few when there are exactly three: only a history finds it."""

    caught_by = "random_histories_agree_with_a_model"

    @hookimpl
    def clear(self, namespace):
        mine = [key for key in list(self.pages) if self.belongs(key, namespace)]
        kept = {mine[0]: self.pages[mine[0]]} if len(mine) == 3 else {}
        removed = Sound.clear(self, namespace)
        self.pages.update(kept)
        return removed


class LocksPerPage(Sound):
    """Each page has a lock, held for the whole batch, taken in the order of the keys."""

    caught_by = "crossing_batches_do_not_deadlock"

    def __init__(self, options, context):
        super().__init__(options, context)
        self.locks, self.company = {}, threading.Barrier(2)

    @hookimpl
    def batch_set(self, keys, pages, ctx):
        taken = []
        try:
            for n, key in enumerate(keys):
                lock = self.locks.setdefault(key, threading.Lock())
                if not lock.acquire(timeout=20):
                    return [Outcome.TIMEOUT] * len(keys)
                taken.append(lock)
                if n == 0:
                    self.wait_for_company()
            return Sound.batch_set(self, keys, pages, ctx)
        finally:
            for lock in taken:
                lock.release()

    def wait_for_company(self):
        try:
            self.company.wait(0.2)
        except threading.BrokenBarrierError:
            self.company.reset()


class CutsTheRanges(Sound):
    """What follows the pool in a key, the layers and heads, is cut off."""

    caught_by = "every_part_of_the_identity_changes_the_key"

    def name(self, key):
        return re.sub(r"\.l\d+-\d+h\d+-\d+$", "", key)


class FindsByPrefix(Sound):
    """Finds the first stored key that begins like the one asked for."""

    caught_by = "identities_that_read_alike_are_apart"

    def name(self, key):
        return key if key in self.pages else next((k for k in self.pages if k.startswith(key)), key)


class FoldsHeads(Sound):
    """Every shard of the heads has one name, as where the rank was left out of the key."""

    caught_by = "sessions_that_read_alike_share_nothing"

    def name(self, key):
        return re.sub(r"h\d+-\d+$", "", key)


class OneNamespaceForAll(IgnoresNamespaces):
    """The namespace is cut off, so models share their pages."""

    caught_by = "sessions_of_different_identities_share_nothing"
