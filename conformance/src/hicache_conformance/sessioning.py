"""Sessions for cases: the core's own way to the store, over the backend itself or over a proxy."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from hicache_conformance.backdoor import BackDoor
from hicache_conformance.driver import make_backend
from hicache_conformance.harness import Harness
from hicache_conformance.material import Lent, page_bytes
from hicache_conformance.pools import WatchedPool, usual_form
from hicache_conformance.verdict import CaseFailed, check_bytes, check_equal
from hicache_core.errors import StorageError
from hicache_core.namespace import Identity
from hicache_core.plugin.select import BackendChoice
from hicache_core.storage import SessionSettings, StorageSession, Transform, open_session
from hicache_core.types import Outcome


@dataclass
class Opened:
    """An open session, the real backend object under it, and what stands between them (or the same object)."""

    h: Harness
    session: StorageSession
    backend: object
    between: Any

    def hashes(self, count: int, start: int = 0) -> list[str]:
        """Page hashes of this round, the same for every session."""
        label = self.h.namespace()
        return [hashlib.sha256(f"{label}:{n}".encode()).hexdigest() for n in range(start, start + count)]

    def physical(self, hashes: Sequence[str]) -> list[str]:
        """The keys under which the store knows these pages."""
        return self.session.identity.key_schema().physical(hashes)

    def door(self) -> BackDoor:
        """The author's back door; Skipped where none is offered."""
        return self.h.back_door(self.backend)

    def page(self, page_hash: str, *, version: int = 0, shape: Sequence[int] | None = None) -> Lent:
        """A page of the hash's bytes, without a seal."""
        return self.h.lend(page_hash, shape or self.shape, version)

    @property
    def shape(self) -> tuple[int, ...]:
        """Regions of a page."""
        return self.h.shape(2, 512)[1:]

    def pool(self, count: int, **more: Any) -> WatchedPool:
        """A host pool of the usual form, lent to the session until it closes."""
        pool = WatchedPool(self.h, count, more.pop("form", None) or usual_form(self.h), **more)
        self.lend(pool)
        return pool

    def lend(self, pool: WatchedPool) -> None:
        """register_host_pool; the store's refusal fails the case."""
        try:
            self.session.register_host_pool(pool.view)
        except StorageError as error:
            raise CaseFailed(f"the store refuses a {pool.form} pool named {pool.view.name}: {error}") from error

    def take_back(self, pool: WatchedPool) -> None:
        """unregister_host_pool; the store's refusal fails the case."""
        try:
            self.session.unregister_host_pool(pool.view)
        except StorageError as error:
            raise CaseFailed(f"the store does not give pool {pool.view.name} back: {error}") from error

    def expect_no_second_read(self, what: str) -> None:
        """The core reads once more, by buffers, what does not verify: a path that needs that does not work."""
        check_equal(self.session.ledger.count("retries"), 0, f"pages that did not verify when first read, {what}")

    def put(self, hashes: Sequence[str], *, version: int = 0, shape: Sequence[int] | None = None) -> list[Outcome]:
        """Set each page."""
        pages = [self.page(page_hash, version=version, shape=shape).buffers for page_hash in hashes]
        return self.session.set(hashes, pages, timeout=self.h.patience)

    def read(self, hashes: Sequence[str], *, shape: Sequence[int] | None = None) -> tuple[list[Outcome], list[Lent]]:
        """Get each page into poisoned buffers."""
        pages = [self.h.blank(shape or self.shape) for _ in hashes]
        return self.session.get(hashes, [p.buffers for p in pages], timeout=self.h.patience), pages

    def expect_hits(self, hashes: Sequence[str], *, version: int = 0, shape: Sequence[int] | None = None) -> None:
        """Every page is a HIT with its bytes."""
        outcomes, pages = self.read(hashes, shape=shape)
        for page_hash, page, outcome in zip(hashes, pages, outcomes, strict=True):
            check_equal(outcome, Outcome.HIT, f"session.get of {page_hash[:12]}…")
            check_bytes(page.data(), page_bytes(page_hash, page.nbytes, version), f"bytes of {page_hash[:12]}…")


def identity_of(h: Harness, **changes: Any) -> Identity:
    """An identity of this round's own; a change of any field is another namespace."""
    fields: dict[str, Any] = {
        "model": f"conformance/{h.namespace()}",
        "weights": "declared:conformance",
        "dtype": "bfloat16",
        "page_size": 16,
        "kind": "mha",
        "layer_num": 2,
        "head_num": 4,
        "head_dim": 16,
    }
    return Identity(**{**fields, **changes})


def session_on(
    h: Harness,
    *,
    identity: Identity | None = None,
    wrap: Callable[[object], object] | None = None,
    transforms: Sequence[Transform] = (),
    settings: SessionSettings | None = None,
) -> Opened:
    """Open a session on the target. wrap: puts something between the core and the real backend object."""
    made: list[object] = []
    between: list[object] = []

    def factory(options: Any, context: Any) -> object:
        made.append(make_backend(h.resolved.spec, options, context))
        h.learn(made[0])
        between.append(wrap(made[0]) if wrap is not None else made[0])
        return between[0]

    spec = dataclasses.replace(h.resolved.spec, factory=factory)
    if wrap is not None:  # what stands between may wait, whatever the store itself promises
        spec = dataclasses.replace(spec, capabilities=msgspec.structs.replace(h.capabilities, nonblocking=False))
    session = open_session(
        BackendChoice(spec, h.resolved.options, "the conformance suite"),
        identity=identity or identity_of(h),
        settings=settings or SessionSettings(timeout=h.patience),
        transforms=transforms,
    )
    opened = Opened(h, session, made[0], between[0])
    h.at_end(session.close)
    h.at_end(lambda: session.clear(timeout=h.patience))
    return opened
