"""Slots by USRBIO: 3FS's I/O rings on shared memory, past FUSE.

Checked against the SDK's Python interface (`hf3fs_py_usrbio` 1.2.9 and its `hf3fs_fuse.io`) with an emulator of it;
it has not yet met a real 3FS. A ring answers in the order of completion: every I/O carries a number in `userdata`,
and its answer is matched by that, never by its place.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hicache_core.errors import MissingDependencyError, OpenError
from hicache_core.types import Outcome
from hicache_hf3fs.counters import Counters
from hicache_hf3fs.errors import outcome_of_write
from hicache_hf3fs.index.interface import Slot
from hicache_hf3fs.jobs import AtPage, Job
from hicache_hf3fs.lanes import Lane, Piece
from hicache_hf3fs.options import Hf3fsOptions, Io
from hicache_hf3fs.slotfiles import SlotFiles

MODULE = "hf3fs_py_usrbio"
INSTALL = "build hf3fs_py_usrbio from the 3FS source tree (the sdist on PyPI does not build by itself)"
_PATIENCE_SECONDS = 30.0
"""How long to wait for I/O where a call has no deadline."""
_left_to_parent: list[Lane] = []
"""Lanes that a forked child inherited: taking them apart there would take them from the parent."""


@dataclass(frozen=True, slots=True)
class Sdk:
    """The SDK's modules and the mount that the root is on."""

    io: Any
    """hf3fs_fuse.io"""
    mount: str

    def register(self, fd: int) -> None:
        """Make a descriptor known to USRBIO. Raises OSError."""
        failed = self.io.register_fd(fd)
        if failed:  # None or 0: registered; else an errno
            raise OSError(abs(int(failed)), "register_fd refused the slot file")

    def deregister(self, fd: int) -> None:
        """Before it is closed."""
        self.io.deregister_fd(fd)


def find(path: str, wanted: Io) -> Sdk | None:
    """The SDK, where it is there and path is on a 3FS mount; None: use the mounted path.

    Raises MissingDependencyError or OpenError where USRBIO is wanted and cannot be.
    """
    if wanted == "posix":
        return None
    try:
        importlib.import_module(MODULE)
        io = importlib.import_module("hf3fs_fuse.io")
    except ImportError as error:
        if wanted == "auto":
            return None
        raise MissingDependencyError(
            f"io=usrbio needs {MODULE} ({error}): {INSTALL}, or set io=posix to use the mounted path"
        ) from error
    mount = io.extract_mount_point(path)
    if mount is None:
        if wanted == "auto":
            return None
        raise OpenError(f"root {path} is not on a 3FS mount, and io=usrbio was asked for; mount 3FS, or set io=posix")
    return Sdk(io, str(mount))


class UsrbioMover:
    """Moves pages through I/O rings. Thread-safe: each call has a lane (a ring pair and its memory) of its own."""

    name = "usrbio"

    def __init__(self, sdk: Sdk, files: SlotFiles, counters: Counters, options: Hf3fsOptions) -> None:
        """Open the first lane, so that what cannot be is told now. Raises OpenError."""
        self._files, self._counters = files, counters
        self._make: Callable[[], Lane] = lambda: Lane(sdk.io, sdk.mount, options.iov_bytes, options.ring_entries)
        self._most = options.rings
        self._changed = threading.Condition()
        self._closed = False
        self._making = 0
        """Lanes that calls are just making."""
        self._settled: list[Slot] = []
        try:
            self._lanes = [self._make()]
        except Exception as error:  # the SDK raises RuntimeError and what else it likes
            raise OpenError(
                f"USRBIO on {sdk.mount} does not start ({type(error).__name__}: {error}); look at the 3FS client on "
                "this node and at the room in /dev/shm (option iov_bytes), or set io=posix"
            ) from error
        self._free = list(self._lanes)

    def read(self, jobs: Sequence[Job], deadline: float | None, verify: AtPage) -> int:
        """See Mover."""
        moved = self._move(jobs, deadline, read=True)
        for job in jobs:
            if job.outcome is None:
                verify(job.position)
        return moved

    def write(self, jobs: Sequence[Job], deadline: float | None, seal: AtPage) -> int:
        """See Mover."""
        ready = []
        for job in jobs:
            seal(job.position)
            try:
                self._files.reach(job.file, job.offset + job.nbytes)
                ready.append(job)
            except OSError as error:
                self._failed(job, error)
        return self._move(ready, deadline, read=False)

    def settled(self) -> list[Slot]:
        """Slots whose writes had been given up and have come to their end since: they may be given back."""
        with self._changed:
            self._look_at_stuck()
            slots, self._settled = self._settled, []
        return slots

    def close(self, *, ours: bool = True) -> None:
        """Release rings and memory. ours False: in a forked child, only what would outlive the parent."""
        if not ours:
            self._changed = threading.Condition()  # another thread of the parent may have held the old one
        with self._changed:
            self._closed = True
            lanes, self._lanes, self._free = self._lanes, [], []
            self._changed.notify_all()
        for lane in lanes:
            lane.close(ours=ours)
        if not ours:
            _left_to_parent.extend(lanes)

    def _move(self, jobs: Sequence[Job], deadline: float | None, *, read: bool) -> int:
        until = time.monotonic() + _PATIENCE_SECONDS if deadline is None else deadline
        if not jobs:
            return 0
        with self._lane(until) as lane:
            if lane is None:
                for job in jobs:
                    job.outcome = Outcome.TIMEOUT
                return 0
            return sum(self._round(lane, pieces, until, read=read) for pieces in lane.rounds(jobs))

    def _round(self, lane: Lane, pieces: Sequence[Piece], until: float, *, read: bool) -> int:
        """Move pieces that fit the lane together; the bytes that were moved."""
        going = []
        for piece in pieces:
            if piece.job.outcome is None and time.monotonic() < until and not lane.pending:
                try:
                    piece.fd = self._files.fd(piece.job.file)
                    going.append(piece)
                except OSError as error:
                    self._failed(piece.job, error)
            else:
                piece.job.fail(Outcome.TIMEOUT)
        moved = 0
        for piece, result in lane.run(going, until, read=read):
            if result == piece.nbytes:
                moved += result
            elif result < 0:
                self._failed(piece.job, OSError(-result, "USRBIO"))
            else:
                piece.job.outcome = Outcome.CORRUPT if read else Outcome.REJECTED
        for piece in lane.pending.values():
            piece.job.outcome, piece.job.in_flight = Outcome.TIMEOUT, True
        return moved

    @contextmanager
    def _lane(self, until: float) -> Iterator[Lane | None]:
        lane = self._borrow(until)
        try:
            yield lane
        finally:
            if lane is not None:
                with self._changed:
                    lane.running = False
                    if not self._closed and not lane.pending:
                        self._free.append(lane)
                    self._changed.notify()

    def _borrow(self, until: float) -> Lane | None:
        with self._changed:
            while not self._closed:
                self._look_at_stuck()
                if self._free:
                    lane = self._free.pop()
                    lane.running = True
                    return lane
                if len(self._lanes) + self._making < self._most:
                    self._making += 1
                    break
                if not self._changed.wait(max(0.0, min(until - time.monotonic(), 0.05))) and (
                    time.monotonic() >= until
                ):
                    return None
            else:
                return None
        return self._another()

    def _another(self) -> Lane | None:
        """A new lane, made without the lock: the SDK maps memory and asks the 3FS client. None after close."""
        lane: Lane | None = None
        try:
            lane = self._make()
        finally:
            with self._changed:
                self._making -= 1
                closed = self._closed
                if lane is not None and not closed:
                    lane.running = True
                    self._lanes.append(lane)
                self._changed.notify()
        if closed:
            lane.close()
            return None
        return lane

    def _look_at_stuck(self) -> None:
        """Lanes whose last I/O was given up are free again when it has come to its end."""
        for lane in self._lanes:
            if lane.pending and not lane.running:
                self._settled += lane.drain()
                if not lane.pending:
                    self._free.append(lane)

    def _failed(self, job: Job, error: OSError) -> None:
        job.outcome = outcome_of_write(error)
        if job.outcome is not Outcome.REJECTED:
            self._counters.note(error)
