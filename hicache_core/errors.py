"""The error tree.

HiCacheError
 x ConfigError (ValueError)               a configuration that cannot work; refused before anything is taken
   + UnknownNameError (LookupError)       a backend, policy or layout that no one registered; names the nearest
   + OptionError                          an option that is unknown, mistyped or out of range; lists the good ones
   + IdentityError                        something that the bytes of a page depend on was not named
   + CapacityError (MemoryError)          a pool larger than the memory that is there; carries the numbers
 x PluginError                            a plugin that cannot be used; never harms another one
   + DuplicateNameError                   two distributions claim one name
   + HookError (TypeError)                a hook misspelt, missing, or with a signature that cannot be called
   + MissingDependencyError (ImportError) the SDK that a plugin needs is absent; carries the install line
 x StorageError
   + OpenError (OSError)                  a store that refused to open: cause and mend
     + DevServerError                     a throwaway server that did not come up; carries the end of its log
   + NotSupportedError                    an optional operation (delete, clear, scan) that this store does not have
 x TransferError (RuntimeError)           a copy between L1 and L2 failed; the cause is attached
   + TransferTimeoutError (TimeoutError)  it was waited for in vain
 x MisuseError (RuntimeError)             a call after close or fork, lists of unequal length, a busy detach
 x IntegrityError (AssertionError)        check_integrity() found the tree or a pool in a state that cannot be

The data path never raises to the engine, except `MisuseError`; everything a store does wrong becomes an
`Outcome` (see `hicache_core.types`).
"""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable


class HiCacheError(Exception):
    """Base of every error that hicache raises on purpose."""


class ConfigError(HiCacheError, ValueError):
    """A configuration that cannot work."""


class UnknownNameError(ConfigError, LookupError):
    """A name that no one registered."""

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        names = sorted(known)
        message = f"unknown {kind} {name!r}"
        near = nearest(name, names)
        message += f"; did you mean {near!r}?" if near else "."
        message += f" Known: {', '.join(names) or 'none'}."
        super().__init__(f"{message} {hint}".rstrip())
        self.name, self.known = name, names


class OptionError(ConfigError):
    """An option that is unknown, of the wrong type, or out of range."""


class IdentityError(ConfigError):
    """Something that the bytes of a page depend on was not named."""


class CapacityError(ConfigError, MemoryError):
    """A pool larger than the memory that is there."""


class PluginError(HiCacheError):
    """A plugin that cannot be used."""


class DuplicateNameError(PluginError):
    """Two distributions claim one name."""


class HookError(PluginError, TypeError):
    """A hook that is misspelt, missing, or cannot be called as the contract calls it."""


class MissingDependencyError(PluginError, ImportError):
    """The SDK that a plugin needs is not installed."""


class StorageError(HiCacheError):
    """An operation on a store that is not on the data path failed."""


class OpenError(StorageError, OSError):
    """A store refused to open."""


class DevServerError(OpenError):
    """A throwaway server that did not come up."""


class NotSupportedError(StorageError):
    """An optional operation that this store does not have."""


class TransferError(HiCacheError, RuntimeError):
    """A copy between the device and the host pool failed: what it should have filled holds nothing of use."""


class TransferTimeoutError(TransferError, TimeoutError):
    """A copy that was waited for did not end in time; it may still end."""


class MisuseError(HiCacheError, RuntimeError):
    """The caller broke a rule of the interface."""


class IntegrityError(HiCacheError, AssertionError):
    """An invariant of the tree or of a pool does not hold."""


def told(error: BaseException) -> str:
    """`Type: text` of any exception. Never raises, also for one whose text cannot be made."""
    try:
        text = str(error)
    except Exception as second:  # noqa: BLE001 - the text of somebody else's exception; what it raised is named
        text = f"(its text cannot be shown: {type(second).__name__})"
    return f"{type(error).__name__}: {text}"


def trace_of(error: BaseException) -> str:
    """The traceback as text: a log record that is kept would keep its frames, and with them what was lent to them."""
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))


def let_go_of_frames(error: BaseException) -> None:
    """pluggy's frames hold the exception and it holds them, and with them the memory that was lent: cut the cycle."""
    chain, seen = [error], set[int]()
    while chain:
        link = chain.pop()
        if id(link) not in seen:
            seen.add(id(link))
            link.__traceback__ = None
            chain += [other for other in (link.__cause__, link.__context__) if other is not None]


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name that is most like `name`, or None where none is as near as `cutoff` (1.0: equal)."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return found[0] if found else None
