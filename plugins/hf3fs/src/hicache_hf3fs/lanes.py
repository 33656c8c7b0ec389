"""A lane of USRBIO: one ring to read, one to write, and the shared memory that pages are copied through."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from hicache_core.storage.staging import copy_bytes
from hicache_core.types import Buffer, Page
from hicache_hf3fs.index.interface import SLOT_UNIT, Slot
from hicache_hf3fs.jobs import Job
from hicache_hf3fs.sharedmemory import SharedMemory


@dataclass(slots=True)
class Piece:
    """A part of a page that is moved by one I/O. at: where it lies in the lane's memory."""

    job: Job
    start: int
    """In the page."""
    nbytes: int
    at: int
    fd: int = -1
    reading: bool = False


class Lane:
    """Used by one call at a time. `pending`: I/Os that were given up and may still touch the memory."""

    def __init__(self, io: Any, mount: str, nbytes: int, entries: int) -> None:
        """io: hf3fs_fuse.io. Raises what the SDK raises."""
        self._memory = SharedMemory(nbytes)
        self._nbytes, self._entries = nbytes, entries
        try:
            self._iov = io.make_iovec(self._memory, mount)
            self._rings = {read: io.make_ioring(mount, entries, for_read=read) for read in (True, False)}
        except BaseException:
            self._memory.close()
            raise
        self._next = 0
        self.pending: dict[int, Piece] = {}
        self.running = False
        """Whether a call has it. Looked at and changed under the mover's lock."""

    def rounds(self, jobs: Sequence[Job]) -> Iterator[list[Piece]]:
        """Cut jobs into groups of pieces that fit memory and rings."""
        group: list[Piece] = []
        at = 0
        for job in jobs:
            start = 0
            while start < job.nbytes:
                room = self._nbytes - at
                if len(group) == self._entries or room < min(job.nbytes - start, self._nbytes):
                    yield group
                    group, at, room = [], 0, self._nbytes
                nbytes = min(job.nbytes - start, room)
                group.append(Piece(job, start, nbytes, at))
                start += nbytes
                at = min(self._nbytes, -(-(at + nbytes) // SLOT_UNIT) * SLOT_UNIT)
        if group:
            yield group

    def run(self, pieces: Sequence[Piece], until: float, *, read: bool) -> list[tuple[Piece, int]]:
        """Move pieces; (piece, bytes or -errno) of those that came back in time. The rest stays `pending`."""
        if not pieces:
            return []
        ring = self._rings[read]
        for piece in pieces:
            if not read:
                _copy(piece.job.page, piece.start, self._at(piece), out=True)
            piece.reading = read
            ring.prepare(
                self._iov[piece.at : piece.at + piece.nbytes],
                read,
                piece.fd,
                piece.job.offset + piece.start,
                self._next,
            )
            self.pending[self._next] = piece
            self._next += 1
        ring.submit()
        done: list[tuple[Piece, int]] = []
        while self.pending and (left := until - time.monotonic()) > 0:
            done += self._collect(ring, left)
        if read:
            for piece, result in done:
                if result == piece.nbytes:
                    _copy(piece.job.page, piece.start, self._at(piece), out=False)
        return done

    def drain(self) -> list[Slot]:
        """Take late answers without waiting; the slots whose writes have all come to their end."""
        before = [piece for piece in self.pending.values() if not piece.reading]
        for read in (True, False):
            if any(piece.reading is read for piece in self.pending.values()):
                self._collect(self._rings[read], 0.0)
        still = {(p.job.slot_bytes, p.job.slot) for p in self.pending.values()}
        return sorted({(p.job.slot_bytes, p.job.slot) for p in before} - still)

    def close(self, *, ours: bool = True) -> None:
        """Give up rings, then the memory. ours False: in a forked child, only the lock on the memory's name."""
        if ours:
            self._rings.clear()
            self._iov = None
            self.pending.clear()
        self._memory.close(ours=ours)

    def _collect(self, ring: Any, seconds: float) -> list[tuple[Piece, int]]:
        """Answers that are there, waiting for the first; matched by userdata, as they come in any order."""
        answers = ring.wait(
            max_results=self._entries, min_results=1 if seconds else 0, timeout=timedelta(seconds=seconds)
        )
        found = ((self.pending.pop(answer.userdata, None), int(answer.result)) for answer in answers)
        return [(piece, result) for piece, result in found if piece is not None]

    def _at(self, piece: Piece) -> Buffer:
        return self._memory.buf[piece.at : piece.at + piece.nbytes]


def _copy(page: Page, start: int, flat: Buffer, *, out: bool) -> None:
    """Copy bytes start … of a page's buffers into `flat` (out), or from it."""
    at = 0
    for buffer in page:
        if start >= buffer.nbytes:
            start -= buffer.nbytes
            continue
        nbytes = min(buffer.nbytes - start, flat.nbytes - at)
        inside, outside = buffer[start : start + nbytes], flat[at : at + nbytes]
        copy_bytes(*((outside, inside) if out else (inside, outside)))
        at, start = at + nbytes, 0
        if at == flat.nbytes:
            return
