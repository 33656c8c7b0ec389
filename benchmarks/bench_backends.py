"""`make bench-backends`: what a sealed, verified session leaves of the throughput of each store's own client.

For every backend whose plugin offers a bare client (`hicache_core.plugin.bare_clients`): 128 pages of 1 MiB and of
256 KiB are put and got on the v1 path, with the store's client and with a session, alternating, on fresh keys each
round. The client moves whole pages; the session those of an MHA pool, K and V apart, each page with its seal. A share
is client seconds / session seconds, of the medians. The first round warms up, is not counted, and is compared byte by
byte. Exit code 1 where a share falls short of what was asked, or a store failed.
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
import numpy as np
from rich.text import Text

from hicache_core.cli.output import check_report_file, err, out, progress, table, write_json
from hicache_core.errors import HiCacheError
from hicache_core.plugin.bare_clients import BareCase, BareClient, PageMemory, backends_with_bare_clients, bare_cases
from hicache_core.plugin.select import choose_backend
from hicache_core.plugin.sizes import format_size, parse_size
from hicache_core.pools.host import HostPool, make_host_pool
from hicache_core.storage import SessionSettings, StorageSession, open_session
from hicache_core.storage.measure import bench_shape
from hicache_core.switching import share_the_gil
from hicache_core.types import Outcome

PAGES = 128
PATIENCE = 120.0
"""Seconds for one operation of the session: a benchmark measures slow stores too."""


class Row(msgspec.Struct, frozen=True):
    """One comparison. asked, aim: shares. Megabytes are 10**6 bytes."""

    backend: str
    variant: str
    page_bytes: int
    operation: str
    client_mb_per_s: float
    session_mb_per_s: float
    share: float
    asked: float
    aim: float | None
    workers_apart: bool = False
    """The session's workers were kept on CPUs of their own (`BareCase.workers_apart`)."""

    @property
    def reached(self) -> bool:
        """Whether the share is what was asked."""
        return self.share >= self.asked


class Unmeasured(msgspec.Struct, frozen=True):
    """What could not be measured, and why. failed: it was running already, so that something is wrong."""

    backend: str
    variant: str
    reason: str
    failed: bool


class Sides:
    """The store's client and a session, each on memory of its own that holds the same random pages.

    The pools are not closed: their memory goes with the last view of it, which an SDK may hold longer than we know.
    """

    def __init__(self, stack: ExitStack, backend: str, case: BareCase, page_bytes: int, rounds: int) -> None:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-backends-")))
        nbytes = (rounds + 1) * PAGES * (page_bytes + 4096)
        bare_options = options = stack.enter_context(case.store(_made(directory / "store"), nbytes))
        if case.apart:
            bare_options = stack.enter_context(case.store(_made(directory / "bare"), nbytes))
        geometry, identity = bench_shape(page_bytes)
        bare_pool = make_host_pool(geometry, "page_first", 2 * PAGES)
        self.memory: PageMemory = bare_pool.buffer.reshape(2 * PAGES, page_bytes)
        self.session: StorageSession = stack.enter_context(
            open_session(choose_backend(backend, options), identity=identity, settings=_settings(case))
        )
        lent = self.session.allocate_host_memory(2 * PAGES * page_bytes, 4096)
        self.pool: HostPool = make_host_pool(geometry, "page_first", 2 * PAGES, memory=lent)
        self.session.register_host_pool(self.pool)
        stack.callback(self.session.unregister_host_pool, self.pool)
        self._parts = self.pool.buffer.reshape(2, 2 * PAGES, page_bytes // 2)  # K and V
        self._fill(page_bytes)
        self.client: BareClient = case.client(bare_options, self.memory)
        stack.callback(self.client.close)
        self.source, self.target = np.arange(PAGES), np.arange(PAGES, 2 * PAGES)

    def _fill(self, page_bytes: int) -> None:
        """Random pages in the first half, zeros in the second; every page of memory is touched."""
        self.memory[:PAGES] = np.random.default_rng(page_bytes).integers(0, 256, (PAGES, page_bytes), dtype=np.uint8)
        self.memory[PAGES:] = 0
        self._parts[:] = self.memory.reshape(2 * PAGES, 2, -1).swapaxes(0, 1)

    def put_bare(self, turn: int) -> None:
        """Store all pages with the client."""
        self.client.put(self.keys(turn), self.source.tolist())

    def get_bare(self, turn: int) -> None:
        """Read them."""
        self.client.get(self.keys(turn), self.target.tolist())

    def put_sealed(self, turn: int) -> list[Outcome]:
        """Store all pages with the session."""
        return self.session.set_v1(self.hashes(turn), self.source)

    def get_sealed(self, turn: int) -> list[Outcome]:
        """Read and verify them."""
        return self.session.get_v1(self.hashes(turn), self.target)

    def hashes(self, turn: int) -> list[str]:
        """Fresh page hashes of a round."""
        return [f"{turn:032x}{number:032x}" for number in range(PAGES)]

    def keys(self, turn: int) -> list[str]:
        """Fresh physical keys of a round, in a namespace beside the session's."""
        return [f"{'0' * 32}/{page_hash}.kv.l0-1h0-1" for page_hash in self.hashes(turn)]

    def forget(self, turn: int) -> None:
        """Remove the pages of a round, where both sides can: stores need not grow, and their memory stays warm."""
        remove = getattr(self.client, "remove", None)
        if remove is not None and self.session.capabilities.delete == "immediate":
            remove(self.keys(turn))
            self.session.delete(self.hashes(turn))

    def compare(self) -> None:
        """What was read is what was stored, on both sides."""
        if not np.array_equal(self.memory[:PAGES], self.memory[PAGES:]):
            raise AssertionError("the store's client read other bytes than were stored")
        if not np.array_equal(self._parts[:, :PAGES], self._parts[:, PAGES:]):
            raise AssertionError("the session read other bytes than were stored")


def _settings(case: BareCase) -> SessionSettings:
    """Workers stay apart where that is for their good: some kernels of virtual machines gather woken threads on one
    CPU, where two workers take as long as one. A client of one thread meets nothing of this."""
    apart = case.workers_apart and sys.platform == "linux"
    return SessionSettings(timeout=PATIENCE, worker_cpus=tuple(sorted(os.sched_getaffinity(0))) if apart else ())


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


def measured(sides: Sides, rounds: int, on_round: Callable[[], object]) -> dict[str, tuple[float, float]]:
    """Median seconds of (client, session) for put and get. AssertionError where a page failed or differs."""
    times: dict[str, tuple[list[float], list[float]]] = {"put": ([], []), "get": ([], [])}
    for turn in range(rounds + 1):
        for operation, (bare, sealed) in times.items():
            for side in (bare, sealed) if turn % 2 else (sealed, bare):
                seconds = _timed(sides, operation, side is sealed, turn)
                if turn:
                    side.append(seconds)
        if not turn:
            sides.compare()
        sides.forget(turn)
        on_round()
    return {name: (statistics.median(bare), statistics.median(sealed)) for name, (bare, sealed) in times.items()}


def _timed(sides: Sides, operation: str, sealed: bool, turn: int) -> float:
    call = getattr(sides, f"{operation}_{'sealed' if sealed else 'bare'}")
    start = time.perf_counter()
    outcomes = call(turn)
    seconds = time.perf_counter() - start
    if sealed and not all(outcomes):
        failed = [outcome.value for outcome in outcomes if not outcome]
        status = sides.session.status()
        raise AssertionError(f"{operation} of {len(failed)} pages failed: {failed[0]}; {status.breakers}")
    return seconds


def compare(
    backend: str, case: BareCase, page_bytes: int, rounds: int, on_round: Callable[[], object]
) -> Iterator[Row]:
    """Put and get of one page size."""
    with ExitStack() as stack:
        found = measured(Sides(stack, backend, case, page_bytes, rounds), rounds, on_round)
    megabytes = PAGES * page_bytes / 1e6
    for operation, (bare, sealed) in found.items():
        yield Row(
            backend,
            case.variant,
            page_bytes,
            operation,
            round(megabytes / bare, 1),
            round(megabytes / sealed, 1),
            round(bare / sealed, 3),
            case.at_least,
            case.aim,
            bool(_settings(case).worker_cpus),
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the backends that were asked for."""
    known = backends_with_bare_clients()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("backends", nargs="*", metavar="NAME", help=f"some of {', '.join(known)}; default: all")
    parser.add_argument("--rounds", type=int, default=5, help="counted rounds, at least 5 for a report")
    parser.add_argument("--page-bytes", default="1MiB,256KiB", help="page sizes, comma-separated")
    parser.add_argument("--json", metavar="FILE", help="write the report there; - is standard output")
    chosen = parser.parse_args(arguments)
    unknown = [name for name in chosen.backends if name not in known]
    if unknown:
        parser.error(f"{unknown[0]!r} has no bare client; those that have one: {', '.join(known)}")
    if chosen.rounds < 1:
        parser.error("--rounds: at least 1")
    check_report_file(chosen.json)
    share_the_gil()
    sizes = [parse_size(text) for text in chosen.page_bytes.split(",")]
    rows, missing = run(chosen.backends or known, sizes, chosen.rounds)
    report = {
        "machine": {"python": platform.python_version(), "machine": platform.machine(), "cpus": os.cpu_count()},
        "pages": PAGES,
        "rounds": chosen.rounds,
        "rows": [{**msgspec.structs.asdict(row), "reached": row.reached} for row in rows],
        "unmeasured": missing,
    }
    if chosen.json:
        write_json(report, chosen.json)
    if chosen.json != "-":
        show(rows, missing, chosen.rounds)
    return int(not all(row.reached for row in rows) or any(one.failed for one in missing))


def run(backends: Sequence[str], sizes: Sequence[int], rounds: int) -> tuple[list[Row], list[Unmeasured]]:
    """All rows, and the cases that cannot run here."""
    rows: list[Row] = []
    missing: list[Unmeasured] = []
    with progress() as bar:
        for backend, case in itertools.chain.from_iterable(((b, c) for c in bare_cases(b)) for b in backends):
            name = f"{backend} {case.variant}".rstrip()
            task = bar.add_task(name, total=len(sizes) * (rounds + 1))
            try:
                for page_bytes in sizes:
                    rows += compare(backend, case, page_bytes, rounds, lambda task=task: bar.advance(task))
            except (HiCacheError, OSError) as error:
                missing.append(Unmeasured(backend, case.variant, str(error), False))
            except Exception as error:  # noqa: BLE001 - an SDK raises what it likes; the other backends are measured
                missing.append(Unmeasured(backend, case.variant, f"{type(error).__name__}: {error}", True))
    return rows, missing


def show(rows: Sequence[Row], missing: Sequence[Unmeasured], rounds: int) -> None:
    """The table."""
    shown = [
        (
            f"{row.backend} {row.variant}".rstrip(),
            f"{row.operation} {format_size(row.page_bytes)}",
            f"{row.client_mb_per_s:,.0f}",
            f"{row.session_mb_per_s:,.0f}",
            f"{row.share:.2f}",
            f"≥ {row.asked:.2f}" if row.asked else "–",
            _verdict(row),
        )
        for row in rows
    ]
    title = f"A sealed session against the store's own client: MB/s, {PAGES} pages, medians of {rounds}"
    names = ("store", "pages", "client", "session", "share", "asked", "")
    out.print(table(title, names, shown, right=(2, 3, 4), whole=range(1, 7)))
    apart = sorted({row.backend for row in rows if row.workers_apart})
    if apart:
        told = f"with the session's workers on CPUs of their own (worker_cpus): {', '.join(apart)}"
        out.print(told, markup=False, highlight=False, soft_wrap=True)
    for one in missing:
        what = "failed" if one.failed else "skipped"
        err.print(f"{what} {one.backend} {one.variant}: {one.reason}", markup=False, soft_wrap=True)


def _verdict(row: Row) -> Text:
    if not row.asked:
        return Text("")
    return Text("reached", "green") if row.reached else Text("missed", "red")


if __name__ == "__main__":
    sys.exit(main())
