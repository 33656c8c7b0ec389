"""A small file store that keeps every rule of the levels durable and hostile, for the broken ones to depart from."""

import contextlib
import itertools
import os
import stat
from pathlib import Path

import msgspec

from hicache_core.plugin.spec import hookimpl
from hicache_core.types import KEY_PATTERN, BackendSpec, Capabilities, Outcome

READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class TinyOptions(msgspec.Struct, forbid_unknown_fields=True):
    """Where the store is."""

    root: str


class TinyFiles:
    """root/namespace/page, published by link(2) from root/+tmp."""

    capabilities = Capabilities(
        durable=True, shared=True, replace=True, delete="immediate", scan=True, reports_exists=True, clean_miss=True
    )
    count = itertools.count()

    def __init__(self, options, context):
        self.root = Path(options.root)
        self.tmp = self.root / "+tmp"
        self.tmp.mkdir(parents=True, exist_ok=True)
        self.clean()

    def clean(self):
        for path in self.tmp.iterdir():
            if not Path(f"/proc/{path.name.split('-')[0]}").exists():
                path.unlink(missing_ok=True)

    def legal(self, key):
        return KEY_PATTERN.fullmatch(key) is not None

    def path(self, key):
        namespace, _, rest = key.partition("/")
        return self.root / namespace / (rest.replace("/", "+") or "+")

    def usable(self, key):
        return self.legal(key) and not self.path(key).parent.is_symlink()

    def present(self, key):
        return self.usable(key) and self.path(key).is_file() and not self.path(key).is_symlink()

    @hookimpl
    def batch_exists(self, keys, ctx):
        return next((n for n, key in enumerate(keys) if not self.present(key)), len(keys))

    @hookimpl
    def batch_get(self, keys, pages, ctx):
        return [self.get(key, page) for key, page in zip(keys, pages, strict=True)]

    def get(self, key, page):
        if not self.usable(key):
            return Outcome.REJECTED
        try:
            fd = os.open(self.path(key), READ)
        except OSError:
            return Outcome.MISS
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_size != sum(map(len, page)):
                return Outcome.CORRUPT
            for buffer in page:
                view = memoryview(buffer)
                while view:
                    view = view[os.readv(fd, [view]) :]
            return Outcome.HIT
        finally:
            os.close(fd)

    @hookimpl
    def batch_set(self, keys, pages, ctx):
        return [self.set(key, page, ctx) for key, page in zip(keys, pages, strict=True)]

    def set(self, key, page, ctx):
        if not self.usable(key):
            return Outcome.REJECTED
        if self.present(key) and not ctx.replace:
            return Outcome.EXISTS
        self.path(key).parent.mkdir(exist_ok=True)
        tmp = self.tmp / f"{os.getpid()}-{next(self.count)}"
        try:
            self.write(tmp, page)
            return self.publish(tmp, self.path(key), ctx.replace)
        except OSError:
            return Outcome.REJECTED
        finally:
            tmp.unlink(missing_ok=True)

    def write(self, path, page):
        with path.open("wb", buffering=0) as file:
            for buffer in page:
                view = memoryview(buffer)
                while view:
                    view = view[file.write(view) :]

    def publish(self, tmp, path, replace):
        if replace:
            tmp.replace(path)
            return Outcome.STORED
        try:
            path.hardlink_to(tmp)
        except FileExistsError:
            return Outcome.EXISTS
        return Outcome.STORED

    @hookimpl
    def delete(self, keys, ctx):
        return [self.remove(key) for key in keys]

    def remove(self, key):
        if not self.usable(key):
            return Outcome.REJECTED
        try:
            self.path(key).unlink()
        except OSError:
            return Outcome.MISS
        return Outcome.HIT

    @hookimpl
    def clear(self, namespace):
        if not self.legal(namespace) or "/" in namespace:
            return 0
        return sum(self.remove(key) is Outcome.HIT for key, *_ in self.listed(namespace))

    def listed(self, namespace):
        directory = self.root / namespace
        if directory.is_symlink() or not directory.is_dir():
            return []
        found = []
        for path in directory.iterdir():
            key = namespace if path.name == "+" else f"{namespace}/{path.name.replace('+', '/')}"
            with contextlib.suppress(FileNotFoundError):
                if self.legal(key) and self.present(key):
                    found.append((key, path.stat().st_size, path.stat().st_mtime))
        return found

    @hookimpl
    def scan(self, namespace, cursor):
        if namespace is not None and (not self.legal(namespace) or "/" in namespace):
            return [], None
        names = [namespace] if namespace is not None else [p.name for p in self.root.iterdir() if p.name != "+tmp"]
        return [entry for name in names for entry in self.listed(name)], None

    @hookimpl
    def close(self):
        return None


class TinyDoor:
    """The back door of TinyFiles and its kin."""

    def __init__(self, backend, options):
        self.backend, self.root = backend, backend.root

    def raw_get(self, key):
        path = TinyFiles.path(self.backend, key)
        return path.read_bytes() if path.is_file() else None

    def raw_set(self, key, data):
        path = TinyFiles.path(self.backend, key)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)

    def raw_delete(self, key):
        path = TinyFiles.path(self.backend, key)
        there = path.exists()
        path.unlink(missing_ok=True)
        return there

    def raw_list(self):
        names = [p.name for p in self.root.iterdir() if p.name != "+tmp"]
        return [key for name in names for key, *_ in TinyFiles.listed(self.backend, name)]


def tiny_spec(backend):
    """The spec of a backend class."""
    return BackendSpec(
        name=backend.__name__.lower(),
        description=backend.__doc__ or "",
        options=TinyOptions,
        factory=backend,
        capabilities=backend.capabilities,
    )


SOUND = tiny_spec(TinyFiles)
