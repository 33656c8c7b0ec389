"""From pages to files: written under a temporary name, then moved to their place in one step."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from hicache_core.types import IoContext, Outcome, Page
from hicache_file.errors import FULL, outcome_of_write
from hicache_file.locks import LockTimeout
from hicache_file.names import legal_key, relative_path
from hicache_file.pageio import page_nbytes, write_page, write_page_direct
from hicache_file.place import Placer
from hicache_file.store import Store
from hicache_file.walk import allocated


class Wanted(NamedTuple):
    """A page of a batch that is to be written."""

    position: int
    key: str
    path: str | None
    """None: its directory is still to be made."""
    page: Page
    nbytes: int


@dataclass(slots=True)
class Batch:
    """What one call to write has done so far."""

    replace: bool
    deadline: float | None
    seal_page: Callable[[int], None]
    """To be told of the position of each page before it is read."""
    added: int = 0
    """Bytes on disk of what was published."""
    files: int = 0
    moved: int = 0
    rejected: int = 0
    full: bool = False
    """The file system said that nothing more fits."""


class Publisher:
    """Writes pages of one open store. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._block = store.block
        self._placer = Placer(store.writer.fd, store.directory.fd)
        self._fill = write_page_direct if store.options.direct else write_page
        self._sync = {"none": None, "data": os.fdatasync, "full": os.fsync}[store.options.sync]
        self._sync_directories = store.options.sync == "full"

    def write(self, keys: Sequence[str], pages: Sequence[Page], ctx: IoContext) -> list[Outcome]:
        """Store each page. Pages that there is no room for are REJECTED, the last of the batch first."""
        replace, deadline = ctx.replace, ctx.deadline
        outcomes = [Outcome.REJECTED] * len(keys)
        wanted: list[Wanted] = []
        paths = self._store.directory.find_each(keys)
        for index, (key, page, path) in enumerate(zip(keys, pages, paths, strict=True)):
            if path is None and not legal_key(key):
                continue
            if path is not None and not replace and self._is_there(path):
                outcomes[index] = Outcome.EXISTS
            else:
                wanted.append(Wanted(index, key, path, page, page_nbytes(page)))
        if not wanted:
            return outcomes
        block = self._block
        space = self._store.space
        try:
            count, reserved = space.reserve([-(-one.nbytes // block) * block for one in wanted], deadline)
        except LockTimeout:
            for one in wanted:
                outcomes[one.position] = Outcome.TIMEOUT
            return outcomes
        batch = Batch(replace, deadline, ctx.seal_page, rejected=len(wanted) - count)
        try:
            self._write_each(wanted[:count], batch, outcomes)
            if self._sync_directories:
                self._sync_places([one.key for one in wanted[:count] if outcomes[one.position]])
        finally:
            space.settle(reserved, batch.added, batch.files)
            self._store.counters.add(bytes_written=batch.moved, rejected=batch.rejected)
        if batch.full and space.limits.any:
            # The disk is full before the cap is reached: give the next batch a chance.
            with suppress(LockTimeout):
                space.make_room(0, deadline, at_least=reserved)
        return outcomes

    def _is_there(self, path: str) -> bool:
        """Whether the page is stored; its use is noted, since whoever offers it again has just computed it."""
        directory = self._store.directory
        if not os.access(path, os.F_OK, dir_fd=directory.fd, follow_symlinks=False):
            return False
        try:
            status = os.stat(path, dir_fd=directory.fd, follow_symlinks=False)
        except OSError:
            return False
        self._store.note_use(path, status.st_mtime_ns, time.time_ns())
        return True

    def _write_each(self, wanted: Sequence[Wanted], batch: Batch, outcomes: list[Outcome]) -> None:
        """Write and publish each page there is room for; its outcome goes to its position."""
        for one in wanted:
            refused = self.refusal(batch)
            outcomes[one.position] = self.told(batch, self._write_one, one) if refused is None else refused

    def refusal(self, batch: Batch) -> Outcome | None:
        """Why no further page of this batch is to be begun; None: go on."""
        if batch.full:
            batch.rejected += 1
            return Outcome.REJECTED
        if batch.deadline is not None and time.monotonic() > batch.deadline:
            return Outcome.TIMEOUT
        return None

    def told(self, batch: Batch, attempt: Callable[..., Outcome], *args: object) -> Outcome:
        """The outcome of `attempt(*args, batch)`; where it raises OSError or LockTimeout, what that means."""
        try:
            return attempt(*args, batch)
        except LockTimeout:
            return Outcome.TIMEOUT
        except OSError as error:
            batch.full = batch.full or error.errno in FULL
            outcome = outcome_of_write(error)
            if outcome is Outcome.REJECTED:
                batch.rejected += 1
            else:
                self._store.counters.note(error)
            return outcome

    def _write_one(self, one: Wanted, batch: Batch) -> Outcome:
        name, fd = self._store.writer.temporary()
        try:
            batch.seal_page(one.position)
            self._fill(fd, one.page, one.nbytes)
        except BaseException:
            self.give_up(name, fd)
            raise
        return self.finish(one, name, fd, batch)

    def give_up(self, name: str, fd: int) -> None:
        """Close and remove a temporary."""
        os.close(fd)
        self._store.writer.remove(name)

    def finish(self, one: Wanted, name: str, fd: int, batch: Batch) -> Outcome:
        """Give a temporary that holds the page its place. Takes the descriptor and the temporary, whatever happens.

        Raises OSError, LockTimeout.
        """
        writer = self._store.writer
        try:
            try:
                batch.moved += one.nbytes
                if self._sync is not None:
                    self._sync(fd)
                status = os.fstat(fd)
            finally:
                os.close(fd)
            published = self._publish(name, one, batch)
        except BaseException:
            writer.remove(name)
            raise
        if not published:
            writer.remove(name)
            return Outcome.EXISTS
        batch.added += allocated(status)
        batch.files += 1
        return Outcome.STORED

    def _publish(self, name: str, one: Wanted, batch: Batch) -> bool:
        """Give the temporary its place; whether it got it. Raises OSError, LockTimeout."""
        directory = self._store.directory
        try:
            return self._place(name, one.path or directory.make(one.key), batch)
        except FileNotFoundError:
            # Another process cleared the namespace and took the directory with it.
            directory.forget(one.key.partition("/")[0])
            return self._place(name, directory.make(one.key), batch)

    def _place(self, name: str, path: str, batch: Batch) -> bool:
        if batch.replace:
            self._store.space.replace(name, path, batch.deadline)
            return True
        return self._placer.place(name, path)

    def _sync_places(self, keys: Sequence[str]) -> None:
        """Make the names durable: the leaf directories, and the directories that name those. Raises OSError."""
        directory = self._store.directory
        paths = {os.path.dirname(relative_path(key)) for key in keys}
        for path in sorted(paths) + sorted({os.path.dirname(path) for path in paths}):
            fd = directory.open_directory(path)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        if paths:
            os.fsync(directory.fd)
