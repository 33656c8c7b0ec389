"""What the backend asks of a client: a few blocking calls on paths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

Data: TypeAlias = Any
"""Anything with the buffer protocol."""


class Entry(NamedTuple):
    """One object of a listing. mtime: seconds since the epoch."""

    path: str
    nbytes: int
    mtime: float


class ObjectClient(Protocol):
    """Methods block; any thread may call. They raise what the client underneath raises: see `failures`."""

    name: str
    conditional: bool
    """Whether `create` is one step on the server, so that of several writers exactly one succeeds."""

    def exists(self, path: str) -> bool:
        """Whether there is an object."""

    def read(self, path: str, limit: int) -> Data:
        """The first `limit` bytes, fewer where the object is shorter. Raises FileNotFoundError."""

    def create(self, path: str, data: Data) -> bool:
        """Store, unless there is one already (False). Visible with all its bytes or not at all."""

    def replace(self, path: str, data: Data) -> None:
        """Store, whatever was there. Readers see the old bytes or the new ones."""

    def remove(self, path: str) -> None:
        """Remove an object; that there is none is no error."""

    def remove_all(self, paths: Sequence[str]) -> None:
        """Remove many."""

    def entries(self, directory: str, after: str | None) -> tuple[list[Entry], bool]:
        """Objects below a directory, ordered, those after the path `after`; whether there may be more."""

    def honours_create(self, path: str, data: bytes) -> bool:
        """Make the object at `path` (the probe's own) and find out whether a second create is refused."""

    def close(self) -> None:
        """Let go of connections."""
