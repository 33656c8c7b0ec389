"""Opening a root: everything that can be wrong is found here, with the mend, before anything is stored."""

from __future__ import annotations

import errno
import math
import mmap
import os
from contextlib import ExitStack

from hicache_core.errors import OpenError, OptionError
from hicache_file.account import Account
from hicache_file.directory import FILE_MODE, Directory, open_directory
from hicache_file.errors import FULL
from hicache_file.locks import LockTimeout, RemovalLock
from hicache_file.names import CONTROL
from hicache_file.options import DIRECT_ALIGNMENT, FileOptions, capabilities
from hicache_file.space import Limits, Space
from hicache_file.stats import Counters
from hicache_file.store import Store
from hicache_file.writer import Writer, make_control

_MEND = {
    **dict.fromkeys(FULL, "free some space"),
    errno.EROFS: "mount it so that it can be written (also who only looks takes a lock in it)",
}
_CONTROL_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW


def open_store(options: FileOptions, *, inspecting: bool = False) -> Store:
    """Open or make the store at options.root. Raises OptionError, OpenError.

    inspecting: for a tool that looks: a store that is not there is an error, nothing is evicted, and reads do not
    count as uses.
    """
    with ExitStack() as undo:
        directory = open_directory(options.root, allow_symlink=options.allow_symlink, create=not inspecting)
        undo.callback(directory.close)
        limits = _limits(options, directory)
        counters = Counters()
        try:
            if inspecting and not os.access(CONTROL, os.F_OK, dir_fd=directory.fd):
                raise OpenError(f"root {directory.path} holds no file store (there is no {CONTROL} in it)")
            make_control(directory)
            account = Account(_control_file(directory, "account"))
            undo.callback(account.close)
            removal = RemovalLock(_control_file(directory, "removal.lock"))
            undo.callback(removal.close)
            writer = Writer(directory, account, os.O_DIRECT if options.direct else 0)
            undo.callback(writer.close)
            if options.direct:
                _probe_direct(writer, directory)
            with account.locked() as totals:
                damaged = not totals.exact
            space = Space(directory, account, removal, writer, limits, counters)
            swept = space.sweep()
            if not inspecting:
                _take_stock(space, damaged=damaged, alone=not swept.alive)
        except OpenError:
            raise
        except LockTimeout as error:
            raise OpenError(
                f"root {directory.path} is locked: {error}; let it go on or end it (`lsof {directory.path}/{CONTROL}/"
                "account` names it)"
            ) from error
        except OSError as error:
            mend = _MEND.get(error.errno or 0, "give it to the user that runs the engine")
            raise OpenError(
                f"root {directory.path} cannot be used by this user ({error.strerror}: {error.filename}); {mend}, or "
                "name another root"
            ) from error
        undo.pop_all()
        block = max(512, os.fstatvfs(directory.fd).f_frsize)
        return Store(
            options=options,
            capabilities=capabilities(options),
            directory=directory,
            account=account,
            removal=removal,
            writer=writer,
            space=space,
            counters=counters,
            block=block,
            touch_ns=math.inf if inspecting else options.touch_interval * 1e9,
        )


def _limits(options: FileOptions, directory: Directory) -> Limits:
    """The options, the cap not above what the file system could ever hold."""
    total = directory.total_bytes()
    if options.min_free_space >= total:
        raise OptionError(
            f"option min_free_space={options.min_free_space} leaves nothing of the file system at {directory.path}, "
            f"which has {total} bytes"
        )
    cap = options.max_size
    if cap is not None:
        cap = min(cap, total - options.min_free_space)
    return Limits(cap, options.min_free_space, options.eviction_ratio)


def _control_file(directory: Directory, name: str) -> int:
    return os.open(f"{CONTROL}/{name}", _CONTROL_FLAGS, FILE_MODE, dir_fd=directory.fd)


def _take_stock(space: Space, *, damaged: bool, alone: bool) -> None:
    """Alone in the root, believe the account only where nothing depends on it."""
    if not alone and not damaged:
        return
    try:
        if damaged or space.limits.any:
            space.reconcile()
            space.make_room(0, None)
            return
    except LockTimeout:
        pass  # whoever holds the lock is at it
    space.mark_dirty()


def _probe_direct(writer: Writer, directory: Directory) -> None:
    """Write one aligned block with O_DIRECT. Raises OpenError where the file system cannot."""
    try:
        name, fd = writer.temporary()
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
        raise _no_direct(directory) from error
    try:
        with mmap.mmap(-1, DIRECT_ALIGNMENT) as block:
            os.pwrite(fd, block, 0)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
        raise _no_direct(directory) from error
    finally:
        os.close(fd)
        writer.remove(name)


def _no_direct(directory: Directory) -> OpenError:
    return OpenError(
        f"the file system at {directory.path} does not take O_DIRECT; set direct=false, or put root on one that does "
        "(ext4, xfs)"
    )
