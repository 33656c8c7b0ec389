"""What backend `nixl` is compared with in `make bench-backends`: an agent, registered memory, one file a page."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hicache_core.plugin.bare_clients import BareCase, PageMemory
from hicache_nixl.options import PARAMETERS


class NixlClient:
    """NIXL's POSIX plugin by the engine of the options. Nothing is published atomically, nothing is checked."""

    def __init__(self, options: Mapping[str, Any], memory: PageMemory) -> None:
        from nixl import nixl_agent, nixl_agent_config

        self._directory = f"{options['root']}-bare"
        os.makedirs(self._directory, exist_ok=True)
        self._base, self._nbytes = memory.ctypes.data, memory.shape[1]
        self._agent: Any = nixl_agent("bare", nixl_agent_config(backends=[]))
        self._agent.create_backend("POSIX", PARAMETERS[options["engine"]])
        self._memory = self._agent.register_memory([(self._base, memory.nbytes, 0, "")], "DRAM")

    def put(self, keys: Sequence[str], slots: Sequence[int]) -> None:
        """Write the pages. NIXL raises where it cannot."""
        self._move("WRITE", os.O_WRONLY | os.O_CREAT | os.O_EXCL, keys, slots)

    def get(self, keys: Sequence[str], slots: Sequence[int]) -> None:
        """Read the pages. NIXL raises for a short file."""
        self._move("READ", os.O_RDONLY, keys, slots)

    def remove(self, keys: Sequence[str]) -> None:
        """Remove the files."""
        for key in keys:
            os.unlink(self._path(key))

    def close(self) -> None:
        """Unregister the memory."""
        self._agent.deregister_memory(self._memory)

    def _path(self, key: str) -> str:
        return f"{self._directory}/{key.rpartition('/')[2]}"

    def _move(self, operation: str, flags: int, keys: Sequence[str], slots: Sequence[int]) -> None:
        agent, size = self._agent, self._nbytes
        fds = [os.open(self._path(key), flags, 0o600) for key in keys]
        try:
            files = agent.register_memory([(0, size, fd, "") for fd in fds], "FILE")
            local = agent.get_xfer_descs([(self._base + slot * size, size, 0) for slot in slots], "DRAM")
            handle = agent.initialize_xfer(operation, local, files.trim(), "bare")
            state = agent.transfer(handle)
            while state == "PROC":
                state = agent.check_xfer_state(handle)
            agent.release_xfer_handle(handle)
            agent.deregister_memory(files)
            if state != "DONE":
                raise OSError(f"NIXL ended the transfer as {state}")
        finally:
            for fd in fds:
                os.close(fd)


def files_by(engine: str) -> BareCase:
    """Plugin POSIX by one engine, on both sides."""

    @contextmanager
    def directory_of(directory: Path, nbytes: int) -> Iterator[Mapping[str, Any]]:
        yield {"root": str(directory / "store"), "engine": engine}

    return BareCase(f"posix, {engine}", directory_of, NixlClient, at_least=0.75, aim=0.85)


CASES = (files_by("io_uring"), files_by("posix_aio"))
