"""An encrypting transform: what reaches the store is not the page."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hicache_conformance.casebook import case
from hicache_conformance.harness import Harness
from hicache_conformance.proxy import Recording
from hicache_conformance.sessioning import ArrayPool, session_on
from hicache_conformance.verdict import Skipped, check, check_equal
from hicache_core.namespace import TransformIdentity
from hicache_core.types import IoContext, Outcome, Page

_PLAIN = b"this text stands in every page and must never reach the store. "


class XorTransform:
    """Every byte against 0x5C: the simplest cipher whose failure shows at once."""

    identity = TransformIdentity("conformance-xor", "1", "5c", "conformance")
    changes_length = False

    def __init__(self, *, in_place: bool) -> None:
        self.in_place_decode = in_place

    def max_size(self, nbytes: int) -> int:
        """As long as the page."""
        return nbytes

    def encode(self, ctx: IoContext, keys: Sequence[str], pages: Sequence[Page]) -> list[Page]:
        """New pages."""
        return [[_xor(buffer) for buffer in page] for page in pages]

    def decode(
        self,
        ctx: IoContext,
        keys: Sequence[str],
        src: Sequence[Page],
        lengths: list[int],
        dst: Sequence[Page],
        outcomes: list[Outcome],
    ) -> list[Outcome]:
        """Back into the page."""
        for i, outcome in enumerate(outcomes):
            if outcome is Outcome.HIT:
                plain = _xor(memoryview(b"".join(src[i])))
                at = 0
                for buffer in dst[i]:
                    buffer[:] = plain[at : at + len(buffer)]
                    at += len(buffer)
                lengths[i] = at
        return outcomes


def _xor(buffer: memoryview) -> memoryview:
    return memoryview(bytes(np.bitwise_xor(np.frombuffer(buffer, np.uint8), np.uint8(0x5C))))


@case("core", "layers of a session: transforms")
def plaintext_never_reaches_the_store(h: Harness) -> None:
    """With an XOR transform no plaintext is handed to the backend or lies in the store, by buffers or by v1."""
    for in_place in (False, True):
        s = session_on(h, wrap=Recording, transforms=[XorTransform(in_place=in_place)])
        hashes = s.hashes(12)
        pool = ArrayPool(12, s.shape, h.capabilities.alignment)
        s.session.register_host_pool(pool)
        plain = (_PLAIN * (1 + sum(s.shape) // len(_PLAIN)))[: sum(s.shape)]
        for n in range(12):
            pool.lent(n).write(plain)
        s.session.set(hashes[:6], [pool.lent(n).buffers for n in range(6)])
        s.session.set_v1(hashes[6:], np.arange(6, 12))
        for n in range(12):
            check(pool.lent(n).data() == plain, "the transform changed the engine's live page")
        check_equal(len(s.between.seen), 12, "pages that reached the backend")
        for key, data in s.between.seen.items():
            check(_PLAIN[:24] not in data, f"plaintext was handed to the backend under {key!r}")
        _look_behind(h, s.physical(hashes), s.backend)
        answers = s.session.get_v1(hashes[:6], np.arange(6))
        outcomes, pages = s.read(hashes[6:])
        check_equal([*answers, *outcomes], [Outcome.HIT] * 12, "get through the transform")
        for n, data in enumerate([*(pool.lent(n).data() for n in range(6)), *(p.data() for p in pages)]):
            check(data == plain, f"page {n} did not come back as it was")
        s.session.clear() if s.session.capabilities.delete == "immediate" else None
        s.session.close()


def _look_behind(h: Harness, keys: list[str], backend: object) -> None:
    """At the back door too, where the author offers one; the recording proxy has seen what was handed over."""
    try:
        door = h.back_door(backend)
    except Skipped:
        return
    for key in keys:
        data = door.raw_get(key)
        check(data is not None, f"{key!r} is not to be found at the back door")
        check(_PLAIN[:24] not in (data or b""), f"plaintext lies in the store under {key!r}")
