"""NIXL agents: each serves one call at a time, and all know the same registered memory."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import numpy.typing as npt

from hicache_core.errors import OpenError
from hicache_core.storage.lender import Lender
from hicache_core.storage.lent_memory import Extent, LentMemory

Descriptors = npt.NDArray[np.uint64]
"""uint64[n, 3]: address or offset, bytes, device (0: memory; else descriptor of a file, number of an object)."""

FIRST_PAUSE, LONGEST_PAUSE = 20e-6, 1e-4
"""Seconds between two looks at a transfer under way, which makes progress by them: NIXL has no event to wait for."""


class NixlError(OSError):
    """A transfer that NIXL gave up."""


class Agent:
    """One agent with one plugin. Used by one thread at a time; `lock` is for registration beside a running call."""

    def __init__(self, name: str, plugin: str, parameters: Mapping[str, str]) -> None:
        from nixl import nixl_agent, nixl_agent_config

        logging.getLogger("nixl").setLevel(logging.WARNING)
        self.name, self._plugin = name, plugin
        self.lock = threading.Lock()
        self._agent: Any = nixl_agent(name, nixl_agent_config(backends=[]))
        self._agent.create_backend(plugin, dict(parameters))
        self._memory: dict[Extent, Any] = {}

    def register(self, extent: Extent) -> None:
        """Make memory known. Raises what NIXL raises."""
        with self.lock:
            self._memory[extent] = self._agent.register_memory([(*extent, 0, "")], "DRAM")

    def unregister(self, extent: Extent) -> None:
        """Forget it."""
        with self.lock:
            self._agent.deregister_memory(self._memory.pop(extent))

    def move(
        self,
        operation: str,
        local: Descriptors,
        kind: str,
        targets: Sequence[tuple[Any, ...]],
        remote: Descriptors,
    ) -> None:
        """One transfer, waited for: its memory is lent until then, however long that takes.

        operation: WRITE or READ. kind: FILE or OBJ. targets: what is registered for this transfer. Raises NixlError.
        """
        with self.lock:
            agent, handle, registered = self._agent, None, None
            try:
                registered = agent.register_memory(list(targets), kind)
                handle = agent.initialize_xfer(
                    operation, agent.get_xfer_descs(local, "DRAM"), agent.get_xfer_descs(remote, kind), self.name
                )
                self._finish(handle)
            except OSError:
                raise
            except Exception as error:
                raise NixlError(f"NIXL {self._plugin} {operation} of {len(targets)} pages: {error}") from error
            finally:
                if handle is not None:
                    agent.release_xfer_handle(handle)
                if registered is not None:
                    agent.deregister_memory(registered)

    def query(self, descriptors: Sequence[tuple[Any, ...]], kind: str) -> list[bool]:
        """Whether each target is there. Raises NixlError."""
        with self.lock:
            try:
                answers = self._agent.query_memory(list(descriptors), self._plugin, kind)
            except Exception as error:
                raise NixlError(f"NIXL {self._plugin} query of {len(descriptors)}: {error}") from error
        return [answer is not None for answer in answers]  # an object that is there is an empty dict

    def close(self) -> None:
        """Unregister everything and end the agent."""
        for extent in list(self._memory):
            self.unregister(extent)
        self._agent = None

    def _finish(self, handle: Any) -> None:
        state, pause = self._agent.transfer(handle), FIRST_PAUSE
        while state == "PROC":
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE) if pause > 0 else pause
            state = self._agent.check_xfer_state(handle)
        if state != "DONE":
            raise NixlError(f"NIXL {self._plugin}: the transfer ended as {state}")


class Agents:
    """The agents of one open store, and the memory they all know. Thread-safe."""

    def __init__(self, count: int, plugin: str, parameters: Mapping[str, str]) -> None:
        """Raises OpenError where NIXL cannot make the plugin."""
        self.memory = LentMemory()
        self._all: list[Agent] = []
        for number in range(count):
            try:
                agent = Agent(f"hicache-{os.getpid()}-{id(self):x}-{number}", plugin, parameters)
            except Exception as error:
                self.close()
                raise OpenError(
                    f"NIXL could not make its plugin {plugin} ({type(error).__name__}: {error}); "
                    "`hicache doctor` says which plugins load here"
                ) from error
            self._all.append(agent)
        self._idle = Lender(self._all)

    @property
    def names(self) -> list[str]:
        """Of the agents."""
        return [agent.name for agent in self._all]

    def one(self, deadline: float | None) -> AbstractContextManager[Agent | None]:
        """An agent nobody else uses, or None where none was free before the deadline."""
        return self._idle.borrow(deadline)

    def register(self, extent: Extent, holder: str, *, shareable: bool = False) -> None:
        """Make memory known to all. Raises MisuseError where it is known already, OpenError where NIXL refuses."""
        if not self.memory.add(extent, holder, shareable=shareable):
            return
        done = []
        try:
            for agent in self._all:
                agent.register(extent)
                done.append(agent)
        except Exception as error:
            for agent in done:
                agent.unregister(extent)
            self.memory.remove(extent[0], holder)
            raise OpenError(f"NIXL did not register {extent[1]:,} bytes ({holder}): {error}") from error

    def unregister(self, extent: Extent, holder: str) -> None:
        """Forget it. Raises MisuseError where it is not known."""
        if self.memory.remove(extent[0], holder):
            for agent in self._all:
                agent.unregister(extent)

    def close(self) -> None:
        """End them all. Nothing may be under way."""
        for agent in self._all:
            agent.close()
        self._all = []
        self.memory = LentMemory()
