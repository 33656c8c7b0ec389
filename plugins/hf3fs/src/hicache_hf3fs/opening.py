"""Opening a store: everything that can be wrong is found here, with the mend, before anything is stored."""

from __future__ import annotations

import math
import os
from contextlib import ExitStack
from dataclasses import dataclass

import msgspec

from hicache_core.errors import OpenError, OptionError
from hicache_core.plugin.redaction import redact_url
from hicache_core.types import Capabilities
from hicache_hf3fs import usrbio
from hicache_hf3fs.counters import Counters, Hf3fsStats
from hicache_hf3fs.errors import IndexFailure
from hicache_hf3fs.index.interface import Index
from hicache_hf3fs.index.schema import DATABASE
from hicache_hf3fs.index.sqlite_index import SqliteIndex
from hicache_hf3fs.jobs import Mover
from hicache_hf3fs.options import Hf3fsOptions, capabilities
from hicache_hf3fs.posix import PosixMover
from hicache_hf3fs.reading import Reader
from hicache_hf3fs.root import Root, open_private
from hicache_hf3fs.slotfiles import SlotFiles
from hicache_hf3fs.writing import Writer


@dataclass(slots=True)
class Store:
    """An open store and everything that works on it."""

    capabilities: Capabilities
    root: Root
    index: Index
    files: SlotFiles
    mover: Mover
    reader: Reader
    writer: Writer
    counters: Counters

    def stats(self) -> Hf3fsStats:
        """Counts."""
        counters = self.counters
        return Hf3fsStats(
            **msgspec.structs.asdict(self.index.totals()),
            io=self.mover.name,
            bytes_read=counters.bytes_read,
            bytes_written=counters.bytes_written,
            raced=counters.raced,
            rejected=counters.rejected,
            errors=counters.errors,
            last_error=counters.last_error,
        )

    def close(self, *, ours: bool = True) -> None:
        """Let go of everything. ours False: in a forked child, which must leave rings, rows and files alone."""
        self.mover.close(ours=ours)
        self.index.close(ours=ours)
        self.files.close(ours=ours)
        self.root.close()


def open_store(options: Hf3fsOptions, *, inspecting: bool = False) -> Store:
    """Open or make the store at options.root. Raises OptionError, OpenError, MissingDependencyError.

    inspecting: for a tool that looks: a store that is not there is an error, and reads do not count as uses.
    """
    with ExitStack() as undo:
        root = open_private("root", options.root, allow_symlink=options.allow_symlink, create=not inspecting)
        undo.callback(root.close)
        if inspecting and root.mark() is None:
            raise OpenError(f"root {root.path} holds no hf3fs store; whoever stores first makes it")
        sdk = usrbio.find(root.path, options.io)
        index = _open_index(options, root, on_3fs=sdk is not None, create=not inspecting)
        undo.callback(index.close)
        counters = Counters()
        try:
            _refuse_unmounted(options, root, index)
            root.claim(
                index.store_id, redact_url(options.metadata_url or options.index_dir or f"the one in {root.path}")
            )
            hooks = (sdk.register, sdk.deregister) if sdk is not None else ()
            files = SlotFiles(root, *hooks)
        except OpenError:
            raise
        except OSError as error:
            raise OpenError(
                f"root {root.path} cannot be used by this user ({error.strerror}: {error.filename}); give it to the "
                "user that runs the engine, mount it so that it can be written, or name another root"
            ) from error
        undo.callback(files.close)
        mover: Mover = PosixMover(files, counters)
        declared = capabilities(options)
        if sdk is not None:
            mover = usrbio.UsrbioMover(sdk, files, counters, options)
            declared = msgspec.structs.replace(declared, zero_copy_v1=False)
        undo.callback(mover.close)
        writer = Writer(index, mover, files, counters, options.sync)
        if not inspecting:
            try:
                writer.shrink()
            except IndexFailure as error:
                raise OpenError(f"the store cannot be brought below max_size ({error})") from error
        undo.pop_all()
        touch = math.inf if inspecting else options.touch_interval
        return Store(declared, root, index, files, mover, Reader(index, mover, counters, touch), writer, counters)


def _refuse_unmounted(options: Hf3fsOptions, root: Root, index: Index) -> None:
    """An index elsewhere that names pages, and a root without a mark: the file system is not there."""
    if (options.metadata_url is None and options.index_dir is None) or root.mark() is not None:
        return
    if pages := index.totals().pages:
        where = f"the service at {redact_url(options.metadata_url)}" if options.metadata_url else options.index_dir
        raise OpenError(
            f"the index ({where}) names {pages} pages, but root {root.path} is none that it has filled: is the file "
            "system mounted there? If the pages are lost, remove the index too"
        )


def _open_index(options: Hf3fsOptions, root: Root, *, on_3fs: bool, create: bool) -> Index:
    if options.metadata_url is not None:
        if options.index_dir is not None:
            raise OptionError("index_dir and metadata_url name two indexes; give one of them")
        from hicache_hf3fs.client import RemoteIndex

        return RemoteIndex(options.metadata_url, options.metadata_token, options.touch_interval)
    if options.metadata_token is not None:
        raise OptionError("option metadata_token is of no use without metadata_url")
    if options.index_dir is None and on_3fs:
        raise OpenError(
            f"root {root.path} is on a 3FS mount, where the embedded index (SQLite in WAL mode) cannot live: set "
            "index_dir to a directory on a local disk (one node), or metadata_url to a `hicache-hf3fs metadata` "
            "service (several nodes)"
        )
    where, chosen = ("root", root.path) if options.index_dir is None else ("index_dir", options.index_dir)
    directory = open_private(where, chosen, allow_symlink=options.allow_symlink, create=create)
    try:
        if not create and not os.access(DATABASE, os.F_OK, dir_fd=directory.fd):
            raise OpenError(f"{where} {directory.path} holds no index (there is no {DATABASE} in it)")
        return SqliteIndex(
            directory,
            max_size=options.max_size,
            durable=options.sync == "full",
            forget=options.sync == "none",
            touch_interval=options.touch_interval,
        )
    except BaseException:
        directory.close()
        raise
