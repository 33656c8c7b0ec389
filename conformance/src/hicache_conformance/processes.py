"""Orders to the agent process, and kill -9."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

from hicache_conformance.harness import Harness
from hicache_conformance.verdict import CaseFailed, Skipped


class Agent:
    """A process that forks a fresh opener of the store for each order. hash_seed: its PYTHONHASHSEED."""

    def __init__(self, h: Harness, *, hash_seed: int = 0) -> None:
        if not isinstance(h.target.backend, str) and h.target.spec_ref is None:
            raise Skipped(
                "needs another process: name an installed backend, or give Target(spec_ref='module:attribute')"
            )
        setup = {
            "backend": h.target.backend if isinstance(h.target.backend, str) else None,
            "spec_ref": h.target.spec_ref,
            "options": dict(h.resolved.given),
            "strict": h.target.strict,
            "directory": str(h.directory),
            "namespace": h.namespace(),
            "stride": h.stride,
            "path": sys.path,
        }
        path = h.directory / f"agent-{hash_seed}.json"
        path.write_text(json.dumps(setup))
        self._patience = h.patience
        self.passed: list[dict[str, Any]] = []
        """What `until` passed over since the last order."""
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "hicache_conformance.agent", str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "OPENBLAS_NUM_THREADS": "1",
                "PYTHONHASHSEED": str(hash_seed),
                "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
            },
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        h.at_end(self.close)

    def order(
        self,
        do: str,
        keys: Sequence[str] = (),
        shape: Sequence[int] = (),
        *,
        version: int = 0,
        batch: int = 8,
        replace: bool = False,
        **more: Any,
    ) -> None:
        """Send an order: do `set`, `get`, `delete`, `clear` or `nothing`.

        more: again, stay, close, file_size_limit, namespace (that the store is opened with), what (to clear), and
        `more=True`: the store stays open for the next order.
        """
        self.passed.clear()
        order = {"do": do, "keys": list(keys), "shape": list(shape), "version": version, "batch": batch}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({**order, "replace": replace, **more}) + "\n")
        self._process.stdin.flush()

    def next(self) -> dict[str, Any]:
        """The next thing that happened. Fails the case when nothing does."""
        try:
            event = self._lines.get(timeout=4 * self._patience)
        except queue.Empty:
            raise CaseFailed(f"the other process said nothing for {4 * self._patience:g} s") from None
        if event is None:
            raise CaseFailed(f"the other process ended by itself, with code {self._process.wait(self._patience)}")
        if event["event"] == "failed":
            raise CaseFailed(f"in another process: {event['error']}")
        return event

    def until(self, name: str) -> dict[str, Any]:
        """Wait for an event; others are passed over (and kept in `passed`)."""
        while (event := self.next())["event"] != name:
            self.passed.append(event)
        return event

    def rest(self) -> list[dict[str, Any]]:
        """Everything up to the end of the child."""
        events = [self.next()]
        while events[-1]["event"] != "ended":
            events.append(self.next())
        return events

    def kill(self, pid: int) -> None:
        """kill -9 of a child (its own forking parent is well and tells when it is gone)."""
        os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """End the process; our own child, by its own id."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(self._patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(self._patience)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(json.loads(line))
        self._lines.put(None)
