"""What a peer case is given: fresh stores of the class, keys and pages, and where their bytes lie."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hicache_conformance.material import page_bytes
from hicache_conformance.peer.kit import PeerKit
from hicache_conformance.verdict import CaseFailed, NotApplicable, check_equal
from hicache_core.adapters.sglang_backend.options import SglangOptions
from hicache_core.adapters.sglang_backend.store import PeerStore
from hicache_core.plugin.options import parse_options
from hicache_core.types import Outcome

PAGE = 4096
"""Bytes of a page in these cases."""


class PeerHarness:
    """One case on one class. directory: its own; the store's files are below `directory/store`."""

    def __init__(self, kit: PeerKit, directory: Path, *, seed: int, case: str) -> None:
        self.kit = kit
        self.directory = directory
        self.root = directory / "store"
        self.root.mkdir()
        self._label = f"{seed}:{case}:{os.urandom(8).hex()}"
        self._stores: list[PeerStore] = []
        self._cleanups: list[Callable[[], object]] = []

    def options(self, **changes: Any) -> SglangOptions:
        """The kit's options, changed. more: goes into extra_config."""
        values = self.kit.options_in(self.root)
        more = changes.pop("more", None)
        if more:
            values["extra_config"] = {**values.get("extra_config", {}), **more}
        return parse_options(SglangOptions, {**values, **changes}, where="options of the judged class")

    def open(self, model: str = "model", *, pool: Any = None, **changes: Any) -> PeerStore:
        """The class under a model's name."""
        store = PeerStore(self.options(**changes), model, PAGE, pool=pool)
        self._stores.append(store)
        return store

    def key(self, n: int = 0) -> str:
        """A page hash, 64 hex digits, as SGLang makes them."""
        return hashlib.sha256(f"{self._label}:{n}".encode()).hexdigest()

    def keys(self, count: int, start: int = 0) -> list[str]:
        """`count` page hashes."""
        return [self.key(n) for n in range(start, start + count)]

    @staticmethod
    def page(key: str, version: int = 0, nbytes: int = PAGE) -> bytes:
        """The bytes of a key's page."""
        return page_bytes(key, nbytes, version)

    def store(self, store: PeerStore, keys: Sequence[str], version: int = 0) -> None:
        """Set each key's page and require success."""
        said = store.set(keys, [self.page(key, version) for key in keys])
        check_equal(said, [Outcome.STORED] * len(keys), "set of new keys")

    def read(self, store: PeerStore, key: str, nbytes: int = PAGE) -> tuple[Outcome | Exception, bytes]:
        """Get one page. What the class raises is an answer too."""
        target = bytearray(b"\xaa") * nbytes
        try:
            outcome = store.get([key], [target])[0]
        except Exception as error:  # noqa: BLE001 - whatever a class raises is what the case is about
            return error, bytes(target)
        return outcome, bytes(target)

    def place_of(self, data: bytes) -> tuple[Path, int]:
        """The file and offset at which the first half of a page lies. NotApplicable where there is no such file."""
        if not self.kit.keeps_files:
            raise NotApplicable("the store keeps no files, and no way past the class into it is known")
        beginning = data[: len(data) // 2]
        for path in sorted(self.root.rglob("*")):
            if path.is_file() and not path.is_symlink():
                at = _find(path, beginning)
                if at >= 0:
                    return path, at
        raise NotApplicable("no file of the store holds a page's bytes as they are")

    def damage(self, data: bytes, change: Callable[[bytes], bytes], *, alone: bool = False) -> None:
        """Change the first half of a page where it is stored, past the class.

        alone: change its length too. NotApplicable where that cannot be done: nothing is known of the store's inside,
        or pages share a file. change: gets all that is stored in the page's file or object, from the page on.
        """
        if self.kit.objects is not None:
            self.kit.objects.rewrite(data[: len(data) // 2], change)
            return
        path, at = self.place_of(data)
        if not alone:
            with path.open("r+b") as file:
                file.seek(at)
                file.write(change(data[: len(data) // 2]))
        elif at or path.stat().st_size > len(data):
            raise NotApplicable("pages share one file of fixed size, so a page cannot be cut or grow by itself")
        else:
            path.write_bytes(change(path.read_bytes()))

    def at_end(self, cleanup: Callable[[], object]) -> None:
        """Call this when the case is over."""
        self._cleanups.append(cleanup)

    def finish(self) -> None:
        """Close what was opened."""
        for store in self._stores:
            with contextlib.suppress(Exception):
                store.close()
        for cleanup in reversed(self._cleanups):
            with contextlib.suppress(Exception):
                cleanup()


def no_hit(answer: Outcome | Exception, found: bytes, stored: bytes, what: str) -> None:
    """Fail where damaged bytes came back as a hit."""
    if answer is not Outcome.HIT or found == stored:
        return
    wrong = [i for i, (a, b) in enumerate(zip(found, stored, strict=True)) if a != b]
    raise CaseFailed(f"{what} is a hit: {len(wrong)} of {len(stored)} bytes are wrong, the first at {wrong[0]}")


def told(answer: Outcome | Exception) -> str:
    """An answer in words."""
    return answer.name if isinstance(answer, Outcome) else f"raised {type(answer).__name__}: {answer}"


def _find(path: Path, data: bytes) -> int:
    """Where data lies in a file, which may be sparse and large: only its data extents are read."""
    with path.open("rb", buffering=0) as file:
        end, at = path.stat().st_size, 0
        while at < end:
            try:
                start = os.lseek(file.fileno(), at, os.SEEK_DATA)
                stop = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            except OSError:  # no more data behind `at`
                return -1
            found = os.pread(file.fileno(), stop - start, start).find(data)
            if found >= 0:
                return start + found
            at = stop
    return -1
