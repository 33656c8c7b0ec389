"""Opening a store: everything that can be refused is refused here, with its cause and mend."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import msgspec

from hicache_aibrix.backend import AibrixBackend
from hicache_aibrix.options import ONLY_ROCKSDB, AibrixOptions
from hicache_aibrix.runner import Runner
from hicache_aibrix.sdk import load_sdk
from hicache_aibrix.shares import Share, share
from hicache_aibrix.store import Connector, Store
from hicache_core.errors import OpenError, OptionError
from hicache_core.types import OpenContext

MARKS = {"shfs": "+hicache", "rocksdb": "CURRENT"}
"""A file by which a root is known to belong to a connector."""


def open_aibrix(options: AibrixOptions, ctx: OpenContext) -> AibrixBackend:
    """Open the store at options.root. Raises OptionError, OpenError or MissingDependencyError."""
    _check_options(options)
    load_sdk()
    root = _root(options, inspecting=ctx.inspecting)
    make = partial(_make, root, options)
    if options.connector == "rocksdb":
        # Where the same directory is named in two ways it is the same database.
        return AibrixBackend(share(root, msgspec.structs.replace(options, root=str(root)), make))
    store = make()
    return AibrixBackend(Share(store, store.close))


def _make(root: Path, options: AibrixOptions) -> Store:
    runner = Runner(options.threads)
    try:
        return Store(_connector(root, options, runner), runner)
    except BaseException:
        runner.close()
        raise


def _connector(root: Path, options: AibrixOptions, runner: Runner) -> Connector:
    # Both modules derive classes from AIBrix's, which is there only now.
    if options.connector == "rocksdb":
        from hicache_aibrix.rocksdb import make_rocksdb

        return make_rocksdb(root, options, runner.pool)
    from hicache_aibrix.shfs import PublishingSHFS

    try:
        connector = PublishingSHFS(root, runner.pool)
    except OSError as error:
        if isinstance(error, OpenError):
            raise
        raise OpenError(f"root {root} cannot hold a store: {error}; it must be writable, with room") from error
    try:
        connector.check()
    except OpenError:
        connector.close()
        raise
    return connector


def _check_options(options: AibrixOptions) -> None:
    idle = [name for name in ONLY_ROCKSDB if getattr(options, name) is not None]
    if options.connector != "rocksdb" and idle:
        raise OptionError(
            f"{', '.join(idle)}: only for connector=rocksdb, and this store has connector={options.connector}; leave "
            "out what it cannot follow"
        )


def _root(options: AibrixOptions, *, inspecting: bool) -> Path:
    """The directory, made if it is not there. Raises OpenError."""
    path = Path(os.path.realpath(os.path.expanduser(options.root)))
    if not path.exists() and inspecting:
        raise OpenError(f"there is no store at {path}; check the option root")
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError as error:
        raise OpenError(f"root {path} is not a directory; name another root") from error
    except OSError as error:
        raise OpenError(f"root {path} cannot be made: {error}; make it and give it to this user") from error
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise OpenError(f"root {path} cannot be written by this user; give it to the user that runs the engine")
    for connector, mark in MARKS.items():
        if connector != options.connector and (path / mark).exists():
            raise OpenError(
                f"root {path} holds a store of connector={connector}, not of {options.connector}; name that "
                "connector or another root"
            )
    return path
