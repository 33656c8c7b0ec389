"""The file backend against bare system calls and against SGLang's file backend, on disk and on tmpfs.

Bare: open, pwritev or preadv of the payload, close, on fresh names in one flat directory. Ours: the same pages, with
a seal, through the backend's hooks (`backend`) and through a session that seals and verifies (`session`). Every
store stays open; each round has fresh names, and nothing is removed before the end. Rounds alternate and the
order turns; every number is a median of rounds. Ratios above 1 mean that we are faster.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from hicache_file.backend import open_file
from hicache_file.options import FileOptions

from hicache_core.types import IoContext, OpenContext, Outcome

NAMESPACE = "0123456789abcdef" * 2
KIB, MIB = 1 << 10, 1 << 20
ROUND_BYTES = 64 * MIB
ROUND_PAGES = 128
TARGETS = {
    "disk.1MiB session.set.ratio_to_bare": 0.5,
    "tmpfs.1MiB session.set.ratio_to_bare": 0.5,
    "disk.1MiB session.get.ratio_to_bare": 0.7,
    "tmpfs.1MiB session.get.ratio_to_bare": 0.7,
    "disk.64KiB session.set.ratio_to_sglang": 0.9,
    "tmpfs.64KiB session.set.ratio_to_sglang": 1.5,
}
"""Ratios to reach at least."""
EXISTS_TARGET_MS = 0.5
"""Milliseconds for 128 keys, at most."""
PEER = Path(__file__).resolve().parent.parent / ".peers" / "sglang" / "env.sh"

Seconds = dict[str, float]
Runner = Callable[[int], Seconds]
"""Runs one round of this number."""


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Wall time of one call, and what it returned."""
    start = time.perf_counter()
    answer = call()
    return time.perf_counter() - start, answer


def repeated(call: Callable[[], Any]) -> tuple[float, Any]:
    """The median of ten calls, and what they answered: one call is as short as a thread takes to wake up."""
    times = [timed(call) for _ in range(10)]
    return statistics.median(seconds for seconds, _ in times), times[0][1]


class Pages:
    """Random pages of one size, and as many targets."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.count = min(ROUND_PAGES, max(8, ROUND_BYTES // nbytes))
        rng = np.random.default_rng(nbytes)
        self.source = rng.integers(0, 256, (self.count, nbytes), dtype=np.uint8)
        self.target = np.zeros_like(self.source)
        self.given = [memoryview(row) for row in self.source]
        self.taken = [memoryview(row) for row in self.target]

    def hashes(self, turn: int) -> list[str]:
        """Fresh page hashes."""
        return [f"{turn:032x}{number:032x}" for number in range(self.count)]

    def check(self) -> None:
        """What was read is what was written; forget it."""
        assert np.array_equal(self.source, self.target)
        self.target[:] = 0


@contextmanager
def bare(directory: str, pages: Pages) -> Iterator[Runner]:
    """The floor."""

    def write(paths: list[str]) -> None:
        for path, page in zip(paths, pages.given, strict=True):
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            os.pwritev(fd, [page], 0)
            os.close(fd)

    def read(paths: list[str]) -> None:
        for path, page in zip(paths, pages.taken, strict=True):
            fd = os.open(path, os.O_RDONLY)
            os.preadv(fd, [page], 0)
            os.close(fd)

    def run(turn: int) -> Seconds:
        paths = [f"{directory}/{page_hash}" for page_hash in pages.hashes(turn)]
        written, _ = timed(lambda: write(paths))
        got, _ = timed(lambda: read(paths))
        pages.check()
        return {"set": written, "get": got}

    yield run


@contextmanager
def backend(directory: str, pages: Pages) -> Iterator[Runner]:
    """The hooks, with a seal buffer in front of each page."""
    store = open_file(FileOptions(root=directory), OpenContext(namespace=NAMESPACE))
    seal = memoryview(bytearray(64))
    given, taken = [[seal, page] for page in pages.given], [[seal, page] for page in pages.taken]

    def run(turn: int) -> Seconds:
        keys = [f"{NAMESPACE}/{page_hash}.kv.l0-30h0-3" for page_hash in pages.hashes(turn)]
        ctx = IoContext(deadline=time.monotonic() + 600)
        written, stored = timed(lambda: store.batch_set(keys, given, ctx))
        got, hits = timed(lambda: store.batch_get(keys, taken, ctx))
        there, count = repeated(lambda: store.batch_exists(keys, ctx))
        return _checked(pages, (written, got, there), stored, hits, count)

    try:
        yield run
    finally:
        store.close()


@contextmanager
def session(directory: str, pages: Pages) -> Iterator[Runner]:
    """A session on top: sealed, verified, with deadline and workers."""
    from hicache_core.namespace import Identity
    from hicache_core.storage import SessionSettings, open_session

    identity = Identity(
        model="bench",
        weights="declared:bench",
        dtype="uint8",
        page_size=64,
        kind="mha",
        layer_num=1,
        head_num=1,
        head_dim=pages.nbytes // 128,
        layout="page_first",
    )
    store = open_session(
        "file", identity=identity, options={"root": directory}, settings=SessionSettings(timeout=600.0)
    )
    given, taken = [[page] for page in pages.given], [[page] for page in pages.taken]

    def run(turn: int) -> Seconds:
        hashes = pages.hashes(turn)
        written, stored = timed(lambda: store.set(hashes, given))
        got, hits = timed(lambda: store.get(hashes, taken))
        there, count = repeated(lambda: store.exists(hashes))
        return _checked(pages, (written, got, there), stored, hits, count)

    try:
        yield run
    finally:
        store.close()


def _checked(
    pages: Pages,
    seconds: tuple[float, float, float],
    stored: list[Outcome],
    hits: list[Outcome],
    count: int,
) -> Seconds:
    assert set(stored) == {Outcome.STORED}
    assert set(hits) == {Outcome.HIT}
    assert count == pages.count
    pages.check()
    written, got, there = seconds
    return {"set": written, "get": got, "exists": there * 128 / pages.count}


class Sglang:
    """SGLang's file backend in a process of its own."""

    def __init__(self) -> None:
        """Start it. Raises OSError with the reason where it is not set up or does not start."""
        if not PEER.exists():
            raise OSError("SGLang is not set up in .peers/sglang")
        script = Path(__file__).with_name("peer_sglang_file.py")
        self._process = subprocess.Popen(
            ["bash", "-c", f'. "{PEER}"; exec "${{PEER_PY:-$SGL_PY}}" "{script}"'],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        if not any(line.strip() == "ready" for line in iter(self._answer, "")):
            self.close()
            raise OSError("SGLang's file backend does not start")

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    @contextmanager
    def __call__(self, directory: str, pages: Pages) -> Iterator[Runner]:
        """A runner, as the functions above."""

        def run(turn: int) -> Seconds:
            assert self._process.stdin is not None
            print(directory, pages.nbytes, pages.count, turn, file=self._process.stdin, flush=True)
            written, got, there = (float(word) for word in self._answer().split())
            return {"set": written, "get": got, "exists": there * 128 / pages.count}

        yield run

    def close(self) -> None:
        """End it."""
        self._process.communicate(timeout=60)


Place = Callable[[str, Pages], Any]


def medians(base: str, pages: Pages, places: dict[str, Place], rounds: int) -> dict[str, Seconds]:
    """Seconds of each runner and operation; one round before them warms up."""
    found: dict[str, dict[str, list[float]]] = {name: {} for name in places}
    with ExitStack() as stack:
        runners = {}
        for name, place in places.items():
            directory = stack.enter_context(tempfile.TemporaryDirectory(dir=base, prefix="bench-file-"))
            runners[name] = stack.enter_context(place(directory, pages))
        names = list(runners)
        for turn in range(rounds + 1):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                for operation, seconds in runners[name](turn).items():
                    found[name].setdefault(operation, []).append(seconds)
    return {
        name: {operation: statistics.median(values[1:]) for operation, values in operations.items()}
        for name, operations in found.items()
    }


def measure(rounds: int = 5, disk: str | None = None, tmpfs: str = "/dev/shm") -> dict[str, Any]:
    """Microseconds a page, milliseconds for 128 exists, ratios; what was skipped, with its reason; the verdicts.

    disk: a directory on a disk, by default the current one.
    """
    result: dict[str, Any] = {"skipped": {}}
    places: dict[str, Place] = {"bare": bare, "backend": backend, "session": session}
    with ExitStack() as stack:
        try:
            peer = Sglang()
            stack.callback(peer.close)
            places["sglang"] = peer
        except OSError as error:
            result["skipped"]["sglang"] = str(error)
        for where, base in (("disk", disk or os.getcwd()), ("tmpfs", tmpfs)):
            if not os.access(base, os.W_OK):
                result["skipped"][where] = f"{base} cannot be written"
                continue
            for label, nbytes in (("64KiB", 64 * KIB), ("1MiB", MIB)):
                pages = Pages(nbytes)
                result[f"{where}.{label}"] = compared(medians(base, pages, places, rounds), pages.count)
    result["verdicts"] = verdicts(result)
    return result


def compared(found: dict[str, Seconds], count: int) -> dict[str, float]:
    """The numbers of one place and size, as a flat table."""
    row: dict[str, float] = {}
    for name, operations in found.items():
        for operation, seconds in operations.items():
            unit, factor = ("exists_128_ms", 1e3) if operation == "exists" else (f"{operation}_us", 1e6 / count)
            row[f"{name}.{unit}"] = round(seconds * factor, 3)
    for name in ("backend", "session"):
        for other in ("bare", "sglang"):
            for operation in ("set", "get"):
                if other in found:
                    ratio = found[other][operation] / found[name][operation]
                    row[f"{name}.{operation}.ratio_to_{other}"] = round(ratio, 3)
    return row


def verdicts(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Each target with what was measured and whether it was reached; targets that were skipped are left out."""
    told: dict[str, dict[str, Any]] = {}
    for target, least in TARGETS.items():
        where, name = target.split()
        value = result.get(where, {}).get(name)
        if value is not None:
            told[target] = {"value": value, "at_least": least, "reached": value >= least}
    for where in ("disk.64KiB", "tmpfs.64KiB"):
        value = result.get(where, {}).get("session.exists_128_ms")
        if value is not None:
            reached = value <= EXISTS_TARGET_MS
            told[f"{where} session.exists_128_ms"] = {"value": value, "at_most": EXISTS_TARGET_MS, "reached": reached}
    return told


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
