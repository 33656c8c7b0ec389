"""File stores that lose, tear, follow or litter. Each names the case of durable or hostile that must catch it."""

import os
import shutil
import threading
from pathlib import Path

from tiny_files import TinyFiles, tiny_spec

from hicache_core.plugin.spec import hookimpl
from hicache_core.types import Outcome


class WritesInPlace(TinyFiles):
    """The page's own file is written, piece by piece."""

    caught_by = "no_torn_page_is_readable_after_kill_9"

    def set(self, key, page, ctx):
        if not self.usable(key) or (self.present(key) and not ctx.replace):
            return TinyFiles.set(self, key, page, ctx)
        self.path(key).parent.mkdir(exist_ok=True)
        with self.path(key).open("wb", buffering=0) as file:
            for buffer in page:
                file.write(buffer)
                threading.Event().wait(0.002)
        return Outcome.STORED


class ReservesInPlace(TinyFiles):
    """The page's own file gets its full length first, its bytes later: a torn page of the right size."""

    caught_by = "no_torn_page_is_readable_after_kill_9"

    def set(self, key, page, ctx):
        if not self.usable(key) or (self.present(key) and not ctx.replace):
            return TinyFiles.set(self, key, page, ctx)
        self.path(key).parent.mkdir(exist_ok=True)
        with self.path(key).open("wb", buffering=0) as file:
            file.truncate(sum(map(len, page)))
            for buffer in page:
                threading.Event().wait(0.002)
                file.write(buffer)
        return Outcome.STORED


class ReplacesInPlace(TinyFiles):
    """A set is atomic, but a replace rewrites the file."""

    caught_by = "a_replace_that_was_killed_leaves_one_whole_page"

    def publish(self, tmp, path, replace):
        if not replace or not path.exists():
            return TinyFiles.publish(self, tmp, path, replace)
        data = tmp.read_bytes()
        with path.open("r+b", buffering=0) as file:
            file.write(data[: len(data) // 2])
            threading.Event().wait(0.03)
            file.write(data[len(data) // 2 :])
        return Outcome.STORED


class WritesBehind(TinyFiles):
    """Answers STORED, keeps the page in memory, and writes it when it is closed."""

    caught_by = "an_acknowledged_page_survives_kill_9"

    def __init__(self, options, context):
        super().__init__(options, context)
        self.waiting = {}

    def set(self, key, page, ctx):
        if not self.usable(key) or self.present(key):
            return TinyFiles.set(self, key, page, ctx)
        self.waiting[key] = b"".join(page)
        return Outcome.STORED

    @hookimpl
    def close(self):
        for key, data in self.waiting.items():
            self.path(key).parent.mkdir(exist_ok=True)
            self.path(key).write_bytes(data)
        self.waiting = {}


class StartsEmpty(TinyFiles):
    """Opening the store empties it."""

    caught_by = "pages_survive_a_reopen"

    def clean(self):
        shutil.rmtree(self.root)
        self.tmp.mkdir(parents=True)


class NamesByHash(TinyFiles):
    """File names come from Python's hash(), which differs from process to process."""

    caught_by = "another_process_finds_the_pages"

    def path(self, key):
        return TinyFiles.path(self, key).with_name(f"{hash(key):x}")


class NeverCleans(TinyFiles):
    """Temporaries of killed writers stay."""

    caught_by = "what_killed_writers_leave_does_not_grow"

    def clean(self):
        return None

    def write(self, path, page):
        TinyFiles.write(self, path, page)
        threading.Event().wait(0.03)


class JoinsAnyKey(TinyFiles):
    """Keys that are outside the rule are joined to the root as they come."""

    caught_by = "no_key_leads_out_of_the_root"

    def legal(self, key):
        return TinyFiles.legal(self, key) or "/../" in key

    def path(self, key):
        return TinyFiles.path(self, key) if TinyFiles.legal(self, key) else Path(os.path.normpath(self.root / key))

    def set(self, key, page, ctx):
        if self.usable(key):
            self.path(key).parent.mkdir(parents=True, exist_ok=True)
        return TinyFiles.set(self, key, page, ctx)


class WritesThroughLinks(TinyFiles):
    """A replace writes to whatever the page's name leads to, and a link is read like a page."""

    caught_by = "a_link_in_place_of_a_page_harms_nothing_outside"

    def publish(self, tmp, path, replace):
        if not replace:
            return TinyFiles.publish(self, tmp, path, replace)
        path.write_bytes(tmp.read_bytes())
        return Outcome.STORED


class FollowsDirectories(TinyFiles):
    """A namespace that is a link is used like a directory."""

    caught_by = "a_linked_directory_is_not_followed_out"

    def usable(self, key):
        return self.legal(key)


class ClearsByRmtree(TinyFiles):
    """clear removes the namespace's directory with everything in it."""

    caught_by = "foreign_files_are_left_alone"

    @hookimpl
    def clear(self, namespace):
        count = len(self.listed(namespace))
        if self.legal(namespace) and count:
            shutil.rmtree(self.root / namespace)
        return count


class RaisesOnADirectory(TinyFiles):
    """What is not a file raises, and the whole batch is lost."""

    caught_by = "a_directory_in_place_of_a_page_is_no_page"

    def get(self, key, page):
        if self.usable(key) and self.path(key).exists():
            self.path(key).read_bytes()
        return TinyFiles.get(self, key, page)


class WaitsForAPipe(TinyFiles):
    """Opens whatever has the page's name, and waits for someone to write into it."""

    caught_by = "a_pipe_in_place_of_a_page_does_not_hang"

    def get(self, key, page):
        if self.usable(key) and self.path(key).exists():
            with self.path(key).open("rb") as file:
                file.read(1)
        return TinyFiles.get(self, key, page)


class LeavesTheRest(TinyFiles):
    """A write that failed half way leaves its temporary."""

    caught_by = "a_full_disk_leaves_no_trace"

    def clean(self):
        return None

    def set(self, key, page, ctx):
        if not self.usable(key):
            return Outcome.REJECTED
        self.path(key).parent.mkdir(exist_ok=True)
        tmp = self.tmp / f"{os.getpid()}-{next(self.count)}"
        try:
            self.write(tmp, page)
        except OSError:
            return Outcome.REJECTED
        outcome = self.publish(tmp, self.path(key), ctx.replace)
        tmp.unlink(missing_ok=True)
        return outcome


class StoresWhatFits(TinyFiles):
    """On a full disk the page is published as far as it went, with success."""

    caught_by = "a_full_disk_leaves_no_trace"

    def write(self, path, page):
        try:
            TinyFiles.write(self, path, page)
        except OSError:
            return


class IgnoresReplace(TinyFiles):
    """Declares replace and keeps the old page, so nothing damaged is ever healed."""

    caught_by = "a_flipped_bit_is_a_miss_and_heals"

    def set(self, key, page, ctx):
        return Outcome.STORED if ctx.replace and self.present(key) else TinyFiles.set(self, key, page, ctx)


class RemembersWhatWasThere(TinyFiles):
    """exists and get go by an index in memory: what vanished is still promised, and reading it raises."""

    caught_by = "a_page_that_vanished_is_a_miss"

    def __init__(self, options, context):
        super().__init__(options, context)
        self.known = set()

    def set(self, key, page, ctx):
        outcome = TinyFiles.set(self, key, page, ctx)
        if outcome:
            self.known.add(key)
        return outcome

    def present(self, key):
        return key in self.known or TinyFiles.present(self, key)


class RefusesToReplaceNothing(TinyFiles):
    """A truncated page is answered MISS and its set EXISTS: it can never be healed."""

    caught_by = "a_truncated_page_is_a_miss_and_heals"

    def get(self, key, page):
        outcome = TinyFiles.get(self, key, page)
        return Outcome.MISS if outcome is Outcome.CORRUPT else outcome


class RemembersMissesOfOthers(TinyFiles):
    """A key that was missed once is missed until this process sets it."""

    caught_by = "a_process_sees_at_once_what_another_does"

    def __init__(self, options, context):
        super().__init__(options, context)
        self.missed = set()

    def present(self, key):
        if key in self.missed:
            return False
        there = TinyFiles.present(self, key)
        if not there:
            self.missed.add(key)
        return there

    def set(self, key, page, ctx):
        self.missed.discard(key)
        outcome = TinyFiles.set(self, key, page, ctx)
        self.missed.discard(key)
        return outcome


class ServesFromMemory(TinyFiles):
    """A page that was read once is served from this process's memory, whatever becomes of it."""

    caught_by = "a_process_sees_at_once_what_another_does"

    def __init__(self, options, context):
        super().__init__(options, context)
        self.cache = {}

    def get(self, key, page):
        data = self.cache.get(key)
        if data is None or len(data) != sum(map(len, page)):
            outcome = TinyFiles.get(self, key, page)
            if outcome is Outcome.HIT:
                self.cache[key] = b"".join(page)
            return outcome
        at = 0
        for buffer in page:
            buffer[:] = data[at : at + len(buffer)]
            at += len(buffer)
        return Outcome.HIT


class SaltsItsNames(NamesByHash):
    """The same, between processes that live at once."""

    caught_by = "what_one_process_wrote_every_process_reads"


class OneProcessOnly(TinyFiles):
    """Whoever opens the store first has it for itself."""

    caught_by = "what_one_process_wrote_every_process_reads"

    def clean(self):
        owner = self.root / "+tmp" / f"{os.getpid()}-owner"
        others = [path for path in self.tmp.glob("*-owner") if path != owner]
        if others:
            raise RuntimeError(f"the store is in use: {others[0].name}")
        owner.touch()


class TellsBothStored(TinyFiles):
    """Looks, then renames over whatever has come meanwhile: two processes are both told STORED."""

    caught_by = "two_processes_on_one_key_leave_one_whole_page"

    def publish(self, tmp, path, replace):
        threading.Event().wait(0.01)
        tmp.replace(path)
        return Outcome.STORED


class ClearsTheRoot(TinyFiles):
    """clear empties the store, other processes' namespaces too."""

    caught_by = "a_process_that_clears_takes_only_its_namespace"

    @hookimpl
    def clear(self, namespace):
        count = len(self.listed(namespace))
        for path in self.root.iterdir():
            if path != self.tmp:
                shutil.rmtree(path)
        return count


class GrowsInPlace(TinyFiles):
    """Writes the page's own file, of its full length from the start: other processes read what is not there yet."""

    caught_by = "a_reader_in_another_process_sees_whole_pages"

    def set(self, key, page, ctx):
        return ReservesInPlace.set(self, key, page, ctx)


class StoresEncoded(TinyFiles):
    """Every byte is stored turned over, which its back door does not know."""

    caught_by = "the_back_door_opens_the_store"

    def write(self, path, page):
        TinyFiles.write(self, path, [bytes(b ^ 0xFF for b in buffer) for buffer in page])

    def get(self, key, page):
        outcome = TinyFiles.get(self, key, page)
        for buffer in page if outcome is Outcome.HIT else ():
            buffer[:] = bytes(b ^ 0xFF for b in buffer)
        return outcome


class MissesWhatGrew(RefusesToReplaceNothing):
    """A page with bytes behind it is a MISS, and its set EXISTS: it is never healed."""

    caught_by = "a_page_that_grew_is_a_miss_and_heals"


class MissIsAnError(TinyFiles):
    """What exists promised and get does not find is an error of the whole call."""

    caught_by = "a_stale_exists_costs_a_miss"

    def get(self, key, page):
        outcome = TinyFiles.get(self, key, page)
        if outcome is Outcome.MISS:
            raise FileNotFoundError(key)
        return outcome


for _backend in [c for c in list(globals().values()) if isinstance(c, type) and issubclass(c, TinyFiles)]:
    globals()[f"{_backend.__name__}Spec"] = tiny_spec(_backend)
