"""The file backend against bare system calls and against SGLang's file backend, on disk and on tmpfs.

Bare: open, pwritev or preadv of the payload, close, on fresh names in one flat directory. Ours: the same pages with
a seal through the backend's hooks (`backend`), and through a session that seals and verifies (`session`). Rounds
alternate; every number is a median of rounds. Ratios above 1 mean that we are faster.
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
BATCH_BYTES = 64 * MIB
BATCH_PAGES = 128
TARGETS = {
    "1MiB.set.ratio_to_bare": 0.5,
    "1MiB.get.ratio_to_bare": 0.7,
    "tmpfs.64KiB.set.ratio_to_sglang": 1.5,
    "disk.64KiB.set.ratio_to_sglang": 0.9,
    "exists_128_ms": 0.5,
}
"""What must be reached (exists: at most, the others: at least)."""
PEERS = Path(__file__).resolve().parent.parent / ".peers" / "sglang"

Seconds = dict[str, float]


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Wall time of one call, and what it returned."""
    start = time.perf_counter()
    answer = call()
    return time.perf_counter() - start, answer


class Pages:
    """Random pages of one size, and as many targets."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.count = min(BATCH_PAGES, max(8, BATCH_BYTES // nbytes))
        rng = np.random.default_rng(nbytes)
        self.source = rng.integers(0, 256, (self.count, nbytes), dtype=np.uint8)
        self.target = np.zeros_like(self.source)
        self.given = [memoryview(row) for row in self.source]
        self.taken = [memoryview(row) for row in self.target]
        self.hashes = [f"{number:064x}" for number in range(self.count)]

    def check(self) -> None:
        """What was read is what was written."""
        assert np.array_equal(self.source, self.target)
        self.target[:] = 0


def bare(directory: str, pages: Pages) -> Seconds:
    """The floor."""

    def write() -> None:
        for name, page in zip(pages.hashes, pages.given, strict=True):
            fd = os.open(f"{directory}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            os.pwritev(fd, [page], 0)
            os.close(fd)

    def read() -> None:
        for name, page in zip(pages.hashes, pages.taken, strict=True):
            fd = os.open(f"{directory}/{name}", os.O_RDONLY)
            os.preadv(fd, [page], 0)
            os.close(fd)

    written, _ = timed(write)
    got, _ = timed(read)
    pages.check()
    return {"set": written, "get": got}


def through_backend(directory: str, pages: Pages) -> Seconds:
    """The hooks, with a seal buffer in front of each page."""
    backend = open_file(FileOptions(root=directory), OpenContext(namespace=NAMESPACE))
    keys = [f"{NAMESPACE}/{page_hash}.kv.l0-30h0-3" for page_hash in pages.hashes]
    seal = memoryview(bytearray(64))
    ctx = IoContext(deadline=time.monotonic() + 600)
    written, stored = timed(lambda: backend.batch_set(keys, [[seal, page] for page in pages.given], ctx))
    got, hits = timed(lambda: backend.batch_get(keys, [[seal, page] for page in pages.taken], ctx))
    there, count = timed(lambda: backend.batch_exists(keys, ctx))
    backend.close()
    assert set(stored) == {Outcome.STORED}
    assert set(hits) == {Outcome.HIT}
    assert count == len(keys)
    pages.check()
    return {"set": written, "get": got, "exists": there * 128 / len(keys)}


def through_session(directory: str, pages: Pages) -> Seconds:
    """A session on top: sealed, verified, with deadline and workers."""
    from hicache_core.namespace import Identity
    from hicache_core.storage.opening import open_session

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
    session = open_session("file", identity=identity, options={"root": directory})
    try:
        written, stored = timed(lambda: session.set(pages.hashes, [[page] for page in pages.given]))
        got, hits = timed(lambda: session.get(pages.hashes, [[page] for page in pages.taken]))
        there, count = timed(lambda: session.exists(pages.hashes))
    finally:
        session.close()
    assert set(stored) == {Outcome.STORED}
    assert set(hits) == {Outcome.HIT}
    assert count == pages.count
    pages.check()
    return {"set": written, "get": got, "exists": there * 128 / pages.count}


@contextmanager
def sglang() -> Iterator[Callable[[str, Pages], Seconds] | str]:
    """SGLang's backend in a process of its own; a reason (text) where it is not set up."""
    if not (PEERS / "env.sh").exists():
        yield "SGLang is not set up in .peers/sglang"
        return
    script = Path(__file__).with_name("peer_sglang_file.py")
    process = subprocess.Popen(
        ["bash", "-c", f'. "{PEERS}/env.sh"; exec "$SGL_PY" "{script}"'],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    answers = process.stdout
    questions = process.stdin
    try:
        if not any(line.strip() == "ready" for line in iter(answers.readline, "")):
            yield "SGLang's file backend does not start"
            return

        def run(directory: str, pages: Pages) -> Seconds:
            questions.write(f"{directory} {pages.nbytes} {pages.count}\n")
            questions.flush()
            written, got, there = (float(word) for word in answers.readline().split())
            return {"set": written, "get": got, "exists": there * 128 / pages.count}

        yield run
    finally:
        questions.close()
        process.wait(60)


def rounds_of(
    base: str, pages: Pages, runners: dict[str, Callable[[str, Pages], Seconds]], rounds: int
) -> dict[str, dict[str, float]]:
    """Medians in seconds of each runner and operation, each round in a fresh directory, the order turning."""
    found: dict[str, dict[str, list[float]]] = {name: {} for name in runners}
    names = list(runners)
    for number in range(rounds + 1):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            with tempfile.TemporaryDirectory(dir=base, prefix="bench-file-") as directory:
                seconds = runners[name](directory, pages)
            if number:  # the first round warms up
                for operation, value in seconds.items():
                    found[name].setdefault(operation, []).append(value)
    return {name: {op: statistics.median(v) for op, v in ops.items()} for name, ops in found.items()}


def measure(rounds: int = 5, disk: str | None = None, tmpfs: str = "/dev/shm") -> dict[str, Any]:
    """Medians in microseconds a page, ratios, and what was skipped with its reason. `disk`: default is here."""
    result: dict[str, Any] = {"targets": TARGETS, "skipped": {}}
    with ExitStack() as stack:
        peer = stack.enter_context(sglang())
        runners: dict[str, Callable[[str, Pages], Seconds]] = {"bare": bare, "backend": through_backend}
        try:
            import hicache_core.storage.opening  # noqa: F401

            runners["session"] = through_session
        except ImportError as error:
            result["skipped"]["session"] = str(error)
        if isinstance(peer, str):
            result["skipped"]["sglang"] = peer
        else:
            runners["sglang"] = peer
        for place, base in (("disk", disk or os.getcwd()), ("tmpfs", tmpfs)):
            if not os.access(base, os.W_OK):
                result["skipped"][place] = f"{base} cannot be written"
                continue
            for label, nbytes in (("64KiB", 64 * KIB), ("1MiB", MIB)):
                pages = Pages(nbytes)
                medians = rounds_of(base, pages, runners, rounds)
                result[f"{place}.{label}"] = _compared(medians, pages.count)
    return result


def _compared(medians: dict[str, dict[str, float]], count: int) -> dict[str, float]:
    row: dict[str, float] = {}
    for name, operations in medians.items():
        for operation, seconds in operations.items():
            unit = ("exists_128_ms", 1e3) if operation == "exists" else (f"{operation}_us", 1e6 / count)
            row[f"{name}.{unit[0]}"] = round(seconds * unit[1], 3)
    for name in ("backend", "session"):
        for other in ("bare", "sglang"):
            for operation in ("set", "get"):
                if name in medians and other in medians:
                    ratio = medians[other][operation] / medians[name][operation]
                    row[f"{name}.{operation}.ratio_to_{other}"] = round(ratio, 3)
    return row


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
