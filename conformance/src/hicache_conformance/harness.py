"""What a case is given: the target, fresh names, pages, and drivers and sessions that are closed afterwards."""

from __future__ import annotations

import hashlib
import os
import random
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from hicache_conformance.backdoor import BackDoor, Outage, outage_of
from hicache_conformance.casebook import declared
from hicache_conformance.driver import Driver, make_backend
from hicache_conformance.material import POISON, Lent, page_bytes
from hicache_conformance.target import Resolved, Target
from hicache_conformance.verdict import CaseFailed, NotApplicable, Skipped, check, check_bytes, check_equal
from hicache_core.types import Capabilities, OpenContext, Outcome

RUN_NONCE = os.urandom(8).hex()
"""Keeps the names of this run apart from what an earlier one left in a durable store."""

OWN_BACK_DOOR = "conformance_back_door"
"""A method of a backend class without packaging, `() -> BackDoor`: it can register no kit."""


class Harness:
    """One round of one case on one target."""

    def __init__(
        self,
        target: Target,
        resolved: Resolved,
        directory: Path,
        *,
        case: str,
        seed: int,
        turn: int,
        level: str = "core",
    ) -> None:
        self.target = target
        self.level = level
        self.resolved = resolved
        self.directory = directory
        self.seed = seed
        self.patience = target.patience
        self.rng = random.Random(f"{seed}:{case}:{turn}")
        self._label = f"{RUN_NONCE}:{seed}:{case}:{turn}"
        self._drivers: list[Driver] = []
        self._namespaces: set[str] = set()
        self._threads = set(threading.enumerate())
        self._cleanups: list[Callable[[], object]] = []
        self.capabilities: Capabilities = resolved.capabilities
        """What the spec declares under these options; once a backend was opened, what that one declares."""

    def learn(self, backend: object) -> None:
        """An opened backend may have narrowed its capabilities, having seen what its store can do.

        Skipped where it no longer declares the level of the case.
        """
        narrowed = getattr(backend, "capabilities", None)
        if isinstance(narrowed, Capabilities):
            self.capabilities = narrowed
        if not declared(self.level, self.capabilities):
            raise Skipped(f"the store, once opened, does not declare what level {self.level} is about")

    # --- names ---------------------------------------------------------------------------------------------------

    def namespace(self, n: int = 0) -> str:
        """The n-th namespace of this round: 32 hex digits that no other round uses."""
        name = hashlib.sha256(f"{self._label}:{n}".encode()).hexdigest()[:32]
        self._namespaces.add(name)
        return name

    def key(self, n: int = 0, ns: int = 0) -> str:
        """The n-th physical key of the ns-th namespace, in the form the core builds."""
        digest = hashlib.sha256(f"{self._label}:page:{n}".encode()).hexdigest()
        return f"{self.namespace(ns)}/{digest}.kv.l0-32h0-8"

    def own(self, key: str) -> str:
        """The key, whose namespace is cleared when the round is over."""
        self._namespaces.add(key.partition("/")[0])
        return key

    def keys(self, count: int, ns: int = 0, start: int = 0) -> list[str]:
        """`count` physical keys."""
        return [self.key(n, ns) for n in range(start, start + count)]

    # --- pages ---------------------------------------------------------------------------------------------------

    @property
    def stride(self) -> int:
        """Bytes of the seal, padded to the store's alignment."""
        return self.rounded(64)

    def rounded(self, nbytes: int) -> int:
        """nbytes, up to a multiple of the store's alignment."""
        unit = max(1, self.capabilities.alignment)
        return -(-nbytes // unit) * unit

    def shape(self, regions: int = 2, region_bytes: int = 512) -> tuple[int, ...]:
        """Buffers of a page: the seal, then its regions, cut to what the store takes."""
        limit = self.capabilities.max_page_bytes
        size = self.rounded(region_bytes)
        if limit is not None and self.stride + regions * size > limit:
            size = (
                (limit - self.stride) // regions // max(1, self.capabilities.alignment) * self.capabilities.alignment
            )
            if size <= 0:
                raise Skipped(f"max_page_bytes {limit} leaves no room for a page of {regions} regions")
        return (self.stride, *[size] * regions)

    def lend(self, key: str, shape: Sequence[int] | None = None, version: int = 0) -> Lent:
        """A page of the key's bytes."""
        shape = shape if shape is not None else self.shape()
        return Lent(shape, alignment=self.capabilities.alignment, fill=page_bytes(key, sum(shape), version))

    def blank(self, shape: Sequence[int] | None = None, fill: int = POISON) -> Lent:
        """A poisoned destination."""
        shape = shape if shape is not None else self.shape()
        return Lent(shape, alignment=self.capabilities.alignment, fill=fill)

    # --- the store, by its hooks -----------------------------------------------------------------------------------

    def context(self, n: int = 0) -> OpenContext:
        """What a factory is told."""
        return OpenContext(namespace=self.namespace(n), seal_bytes=self.stride)

    def open(self, n: int = 0) -> Driver:
        """Open the backend, past the core."""
        backend = make_backend(self.resolved.spec, self.resolved.options, self.context(n))
        self.learn(backend)
        driver = Driver(backend, self.capabilities, timeout=max(60.0, self.patience))
        self._drivers.append(driver)
        return driver

    def put(
        self,
        driver: Driver,
        keys: Sequence[str],
        *,
        version: int = 0,
        shape: Sequence[int] | None = None,
        replace: bool = False,
    ) -> list[Outcome]:
        """Set each key's bytes; the outcomes."""
        return driver.set(keys, [self.lend(key, shape, version) for key in keys], replace=replace)

    def store(
        self, driver: Driver, keys: Sequence[str], *, version: int = 0, shape: Sequence[int] | None = None
    ) -> None:
        """Set each key's bytes and require success."""
        for key, outcome in zip(keys, self.put(driver, keys, version=version, shape=shape), strict=True):
            check(outcome, f"set of the new key {key!r} answered {outcome.name}")

    def fetch(self, driver: Driver, key: str, shape: Sequence[int] | None = None) -> tuple[Outcome, bytes]:
        """Get one key into a poisoned page."""
        page = self.blank(shape)
        return driver.get([key], [page])[0], page.data()

    def expect_hits(
        self, driver: Driver, keys: Sequence[str], *, version: int = 0, shape: Sequence[int] | None = None
    ) -> None:
        """Each key is a HIT with exactly its bytes."""
        pages = [self.blank(shape) for _ in keys]
        for key, page, outcome in zip(keys, pages, driver.get(keys, pages), strict=True):
            check_equal(outcome, Outcome.HIT, f"get of the stored key {key!r}")
            check_bytes(page.data(), page_bytes(key, page.nbytes, version), f"bytes read for {key!r}")

    def expect_gone(self, driver: Driver, keys: Sequence[str], *, shape: Sequence[int] | None = None) -> None:
        """No key is found, by exists or by get."""
        for key, outcome in zip(keys, driver.get(keys, [self.blank(shape) for _ in keys]), strict=True):
            check_equal(outcome, Outcome.MISS, f"get of the absent key {key!r}")
            check_equal(driver.exists([key]), 0, f"exists of the absent key {key!r}")

    # --- past the backend ------------------------------------------------------------------------------------------

    def back_door(self, backend: object) -> BackDoor:
        """The author's way into the store; Skipped where none is offered."""
        if self.target.back_door is not None:
            return self.target.back_door(backend, self.resolved.options)
        kit = self.target.kit
        if kit is not None:
            return kit.back_door(backend, self.resolved.options)
        own = getattr(backend, OWN_BACK_DOOR, None)
        if own is not None:
            made: BackDoor = own()
            return made
        raise Skipped(
            "needs a back door: register a StoreKit in the entry-point group 'hicache.backdoors', give "
            f"Target(back_door=...), or, in a class for `dynamic`, a method {OWN_BACK_DOOR}()"
        )

    def root(self, door: BackDoor) -> Path:
        """The store's directory; NotApplicable where it keeps no files."""
        if door.root is None:
            raise NotApplicable("the back door says that the store keeps no files")
        return Path(door.root)

    def outage(self) -> Outage:
        """How to kill and restart the store's server; NotApplicable where there is none that the kit names."""
        found = outage_of(self.target.kit)
        if found is None:
            raise NotApplicable("the kit names no server that could be killed (kill_store, restart_store)")
        if not self.target.throwaway:
            raise Skipped("kills the store's server: only done to a throwaway store (give no options)")
        return found

    # --- threads ---------------------------------------------------------------------------------------------------

    def together(self, *bodies: Callable[[], object]) -> None:
        """Run all at once, each in a thread, and wait for all; the first failure is raised here."""
        failures: list[BaseException] = []
        gate = threading.Barrier(len(bodies))

        def run(body: Callable[[], object]) -> None:
            try:
                gate.wait(self.patience)
                body()
            except BaseException as error:  # noqa: BLE001 - carried to the case's thread, below
                failures.append(error)

        threads = [threading.Thread(target=run, args=(body,), daemon=True) for body in bodies]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(self.patience)
        stuck = sum(thread.is_alive() for thread in threads)
        if failures:
            raise failures[0]
        check(not stuck, f"{stuck} of {len(threads)} threads did not come back within {self.patience:g} s")

    def threads_since_open(self) -> list[threading.Thread]:
        """Threads that are alive now and were not when the round began."""
        return [t for t in threading.enumerate() if t not in self._threads and t is not threading.current_thread()]

    def let_threads_end(self, store: Driver) -> None:
        """Close the store and wait for whatever it still had running."""
        store.close()
        for thread in self.threads_since_open():
            thread.join(self.patience)

    # --- the end ---------------------------------------------------------------------------------------------------

    def at_end(self, cleanup: Callable[[], object]) -> None:
        """Call this when the round is over, last one first."""
        self._cleanups.append(cleanup)

    def finish(self) -> None:
        """Close what the round opened and take its keys out of the store. Failures here are not the case's matter."""
        while self._cleanups:
            with suppress(Exception):
                self._cleanups.pop()()
        closing = threading.Thread(target=self._sweep, daemon=True)
        closing.start()
        closing.join(self.patience)  # a store that hangs here has already failed its case, or fails the next
        self._drivers.clear()

    def _sweep(self) -> None:
        with suppress(CaseFailed):
            for namespace in self._namespaces if self._drivers else ():
                self._drivers[-1].clear(namespace)
        for driver in tuple(self._drivers):
            with suppress(CaseFailed):
                driver.close()
