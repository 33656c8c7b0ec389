"""Kill a process that is writing pages, with SIGKILL, at random moments, again and again, and look at what it left.

For a backend whose author wants more than the cases of level durable ask: hundreds of kills, deletions and
replacements by two threads, a bounded store, and an audit of the backend's own of what must hold afterwards. The
script `kill_writer.py` in the tests of hicache-file shows how it is used.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias

from hicache_core.seal import SEAL_BYTES, Sealer, inspect
from hicache_core.storage.binding import HookBinding
from hicache_core.types import Buffer, IoContext, OpenContext, Outcome, Page

KEYS = 400
"""How many keys the writers write, over and over."""
_CONTEXT = OpenContext(namespace="5" * 32)

Opener: TypeAlias = "Callable[[OpenContext], Any]"
"""Opens the store; the backend object."""
Audit: TypeAlias = "Callable[[Any], list[str]]"
"""What is wrong with a store that was opened after a kill, beside torn pages, in words."""


@dataclass
class KillReport:
    """rounds: kills that were asked for. killed: writers that died of the signal. complaints: what was wrong."""

    rounds: int
    killed: int = 0
    pages_read: int = 0
    complaints: list[str] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """Whether anything was wrong, or a writer ended by itself."""
        return bool(self.complaints) or self.killed != self.rounds


def kill_arguments(description: str, *, page_bytes: int) -> argparse.ArgumentParser:
    """A command line for such a script: root, rounds, page_bytes (payload of a page), max_size, seed."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("root")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--page-bytes", type=int, default=page_bytes)
    parser.add_argument("--max-size", type=int, default=None)
    parser.add_argument("--seed", type=int, default=1)
    return parser


def kill_writers(open_store: Opener, audit: Audit, *, sizes: Sequence[int], rounds: int, seed: int = 1) -> KillReport:
    """Kill `rounds` writers one after the other; after each, open the store, read every page of it, and audit it.

    sizes: payload bytes of the pages. Pages are sealed, so `hicache store verify` can judge them again afterwards.
    The backend must have `scan`. Call it from a process that has no other thread: writers are forked.
    """
    rng = random.Random(seed)
    report = KillReport(rounds)
    for number in range(rounds):
        report.killed += _kill_one(open_store, sizes, seed + number, rng)
        backend = open_store(_CONTEXT)
        hooks = HookBinding(backend)
        read, complaints = _torn_pages(hooks)
        report.pages_read += read
        report.complaints += [f"round {number}: {text}" for text in [*complaints, *audit(backend)]]
        hooks.call("close")
    return report


def _kill_one(open_store: Opener, sizes: Sequence[int], seed: int, rng: random.Random) -> bool:
    """Start a writer, let it write a little, kill it; whether it died of that."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reading)
        try:
            _write_for_ever(open_store, sizes, seed, writing)
        finally:
            os._exit(3)
    os.close(writing)
    for _ in range(rng.randrange(1, 6)):
        os.read(reading, 1)
    threading.Event().wait(rng.random() * 0.02)  # no wait for anything: it moves the point of the kill
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    os.close(reading)
    return os.WIFSIGNALED(status)


def _write_for_ever(open_store: Opener, sizes: Sequence[int], seed: int, said: int) -> NoReturn:
    """What the victim does: batches, replacements and deletions from two threads; a byte to `said` after each."""
    hooks = HookBinding(open_store(_CONTEXT))
    sealer = Sealer(_CONTEXT.namespace)
    payloads = [random.Random(n).randbytes(size) for n, size in enumerate(sizes)]

    def work(number: int) -> NoReturn:
        rng = random.Random(seed * 2 + number)
        while True:
            keys = [f"{_CONTEXT.namespace}/{rng.randrange(KEYS):064x}" for _ in range(8)]
            pages = [_sealed(sealer, key, rng.choice(payloads)) for key in keys]
            hooks.call("batch_set", keys=keys, pages=pages, ctx=IoContext(replace=rng.random() < 0.3))
            if rng.random() < 0.1:
                hooks.call("delete", keys=keys[:2], ctx=IoContext())
            os.write(said, b".")

    threading.Thread(target=work, args=(1,), daemon=True).start()
    work(0)


def _sealed(sealer: Sealer, key: str, payload: bytes) -> Page:
    seal, data = memoryview(bytearray(SEAL_BYTES)), memoryview(payload)
    sealer.stamp(key, [data], seal)
    return [seal, data]


def _torn_pages(hooks: HookBinding) -> tuple[int, list[str]]:
    """How many pages were read, and a complaint for each that is not whole."""
    read, complaints = 0, []
    cursor: str | None = None
    while True:
        entries, cursor = hooks.call("scan", namespace=None, cursor=cursor)
        for key, nbytes, _ in entries:
            page: Buffer = memoryview(bytearray(nbytes))
            [outcome] = hooks.call("batch_get", keys=[key], pages=[[page]], ctx=IoContext())
            judged = inspect(key, page) if outcome is Outcome.HIT else None
            if judged is None or judged.outcome is not Outcome.HIT:
                complaints.append(f"torn page {key}: {judged.reason if judged else outcome.value}, {nbytes} bytes")
            read += 1
        if cursor is None:
            return read, complaints
