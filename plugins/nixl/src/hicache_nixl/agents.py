"""NIXL agents: each serves one call at a time, and all know the same registered memory."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
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


BUSY = 5e-5
"""Seconds that a look takes in which nothing was moved, at most."""


class NixlError(OSError):
    """A transfer that NIXL gave up."""


class Transfer:
    """Bytes on their way. The handle is released when it has ended; until then its memory is lent."""

    def __init__(self, agent: Any, handle: Any, name: str) -> None:
        self._agent, self._handle, self._name = agent, handle, name
        self._trouble = ""
        self._state = self._ask(agent.transfer)

    def ended(self) -> bool:
        """One look, by which a transfer also makes progress. Raises NixlError, each time, where it has failed."""
        if self._state == "PROC":
            self._state = self._ask(self._agent.check_xfer_state)
        if self._state == "PROC":
            return False
        if self._handle is not None:
            handle, self._handle = self._handle, None
            self._agent.release_xfer_handle(handle)
        if self._state != "DONE":
            raise NixlError(f"{self._name}: {self._trouble or f'it ended as {self._state}'}")
        return True

    def wait(self) -> None:
        """Until it has ended, however long that takes. Raises NixlError where it fails.

        An interrupt (Ctrl-C) is raised only then: whoever gets it may use the memory for something else.
        """
        pause = FIRST_PAUSE
        interrupt: BaseException | None = None
        while True:
            try:
                looked = time.monotonic()
                if self.ended():
                    break
                if time.monotonic() - looked < BUSY:  # a look that takes longer has moved bytes, and will again
                    time.sleep(pause)
                    pause = min(2 * pause, LONGEST_PAUSE) if pause > 0 else pause
            except NixlError:
                if interrupt is None:
                    raise
                break
            except BaseException as error:  # noqa: BLE001 - raised below
                interrupt = error
        if interrupt is not None:
            raise interrupt

    def _ask(self, question: Callable[[Any], str]) -> str:
        try:
            return question(self._handle)
        except Exception as error:  # noqa: BLE001 - NIXL raises kinds of its own; `ended` tells it
            self._trouble = str(error)
            return "ERR"


class Agent:
    """One agent with one plugin. Used by one thread at a time.

    lock: held during calls, since memory may be registered beside them.
    """

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
        """Forget it. Nothing to do where `close` has been before."""
        with self.lock:
            registered = self._memory.pop(extent, None)
            if registered is not None:
                self._agent.deregister_memory(registered)

    def lend(self, kind: str, targets: Sequence[tuple[Any, ...]]) -> Any:
        """Register what transfers go to or come from, until `take_back`. kind: FILE or OBJ. Raises NixlError."""
        with self._named(f"registration of {len(targets)} targets"):
            return self._agent.register_memory(list(targets), kind)

    def take_back(self, lent: Any) -> None:
        """What `lend` gave; nothing may be under way to or from it."""
        self._agent.deregister_memory(lent)

    def begin(self, operation: str, local: Descriptors, kind: str, remote: Descriptors) -> Transfer:
        """Begin a transfer between memory and targets that are lent. operation: WRITE or READ. Raises NixlError."""
        agent, what = self._agent, f"{operation} of {len(local)} parts"
        with self._named(what):
            handle = agent.initialize_xfer(
                operation, agent.get_xfer_descs(local, "DRAM"), agent.get_xfer_descs(remote, kind), self.name
            )
            return Transfer(agent, handle, f"NIXL {self._plugin} {what}")

    def move(
        self,
        operation: str,
        local: Descriptors,
        kind: str,
        targets: Sequence[tuple[Any, ...]],
        remote: Descriptors,
    ) -> None:
        """One transfer, waited for: its memory is lent until then, however long that takes. Raises NixlError."""
        with self.lock:
            lent = self.lend(kind, targets)
            try:
                self.begin(operation, local, kind, remote).wait()
            finally:
                self.take_back(lent)

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

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError:
            raise
        except Exception as error:
            raise NixlError(f"NIXL {self._plugin} {what}: {error}") from error


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
