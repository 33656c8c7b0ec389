"""A small backend that keeps every rule, for the broken ones to depart from."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import msgspec

from hicache_core.plugin.spec import hookimpl
from hicache_core.types import KEY_PATTERN, BackendSpec, Capabilities, Outcome

LIMIT = 9 << 20


class Options(msgspec.Struct, forbid_unknown_fields=True):
    """No options."""


class Sound:
    """Pages in a dict, shared by all instances of one class (as a server would be)."""

    capabilities = Capabilities(
        shared=True,
        replace=True,
        delete="immediate",
        scan=True,
        reports_exists=True,
        clean_miss=True,
        max_page_bytes=LIMIT,
    )

    def __init__(self, options, context):
        self.options, self.context = options, context
        self.pages = type(self).__dict__.get("_pages") or self._make_pages()
        self.lock = threading.Lock()
        self.read_bytes = self.written_bytes = 0

    @classmethod
    def _make_pages(cls):
        cls._pages = pages = _Pages()
        return pages

    def legal(self, key):
        return KEY_PATTERN.fullmatch(key) is not None

    def name(self, key):
        return key

    @hookimpl
    def batch_exists(self, keys, ctx):
        for n, key in enumerate(keys):
            if not self.legal(key) or self.name(key) not in self.pages:
                return n
        return len(keys)

    @hookimpl
    def batch_get(self, keys, pages, ctx):
        return [self.get(key, page) for key, page in zip(keys, pages, strict=True)]

    def get(self, key, page):
        if not self.legal(key):
            return Outcome.REJECTED
        data = self.pages.get(self.name(key))
        if data is None:
            return Outcome.MISS
        return self.fill(page, data)

    def fill(self, page, data):
        if len(data) != sum(len(buffer) for buffer in page):
            return Outcome.CORRUPT
        at = 0
        for buffer in page:
            buffer[:] = data[at : at + len(buffer)]
            at += len(buffer)
        self.read_bytes += len(data)
        return Outcome.HIT

    @hookimpl
    def batch_set(self, keys, pages, ctx):
        return [self.set(key, page, ctx) for key, page in zip(keys, pages, strict=True)]

    def set(self, key, page, ctx):
        if not self.legal(key) or sum(len(buffer) for buffer in page) > LIMIT:
            return Outcome.REJECTED
        data = b"".join(page)
        with self.lock:
            if self.name(key) in self.pages and not ctx.replace:
                return Outcome.EXISTS
            self.pages[self.name(key)] = data
            self.written_bytes += len(data)
        return Outcome.STORED

    @hookimpl
    def delete(self, keys, ctx):
        return [self.remove(key) for key in keys]

    def remove(self, key):
        if not self.legal(key):
            return Outcome.REJECTED
        return Outcome.MISS if self.pages.pop(self.name(key), None) is None else Outcome.HIT

    @hookimpl
    def clear(self, namespace):
        with self.lock:
            mine = [key for key in self.pages if self.belongs(key, namespace)]
            for key in mine:
                del self.pages[key]
        return len(mine)

    def belongs(self, key, namespace):
        return self.legal(namespace) and "/" not in namespace and key.split("/")[0] == namespace

    @hookimpl
    def scan(self, namespace, cursor):
        keys = sorted(k for k in list(self.pages) if namespace is None or self.belongs(k, namespace))
        keys = [k for k in keys if cursor is None or k > cursor]
        page = [(k, len(self.pages[k]), time.time()) for k in keys[:500]]
        return page, (keys[499] if len(keys) > 500 else None)

    @hookimpl
    def stats(self):
        return {"read_bytes": self.read_bytes, "written_bytes": self.written_bytes}

    @hookimpl
    def close(self):
        return None


class _Pages(dict):
    """A dict that is true when empty."""

    def __bool__(self):
        return True


class DictDoor:
    """The back door of `Sound` and its kin."""

    root: Path | None = None

    def __init__(self, backend, options):
        self.pages = backend.pages

    def raw_get(self, key):
        return self.pages.get(key)

    def raw_set(self, key, data):
        self.pages[key] = data

    def raw_delete(self, key):
        return self.pages.pop(key, None) is not None

    def raw_list(self):
        return list(self.pages)


def spec_of(backend):
    """The spec of a backend class."""
    return BackendSpec(
        name=backend.__name__.lower(),
        description=backend.__doc__ or "",
        options=Options,
        factory=lambda options, context: backend(options, context),
        capabilities=backend.capabilities,
    )
