"""Tasks of an L2 adapter: what is under way, results until LMCache takes them, locks.

Calls come from LMCache's two controllers and from workers of the session. Nothing here waits.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

from lmcache.v1.platform import create_event_notifier


class Results:
    """Results of one kind of task, and the event that tells of them. Each is handed out once."""

    def __init__(self) -> None:
        self._event: Any = create_event_notifier()
        self._mutex = threading.Lock()
        self._done: dict[int, Any] = {}
        self._closed = False

    def fileno(self) -> int:
        """The descriptor that is readable when there is a result."""
        return int(self._event.fileno())

    def tell(self, task: int, result: Any) -> None:
        """A task has ended."""
        with self._mutex:
            if self._closed:  # the descriptor's number may belong to somebody else by now
                return
            self._done[task] = result
            self._event.notify()

    def take(self, task: int) -> Any | None:
        """The result of a task, or None."""
        with self._mutex:
            return self._done.pop(task, None)

    def take_all(self) -> dict[int, Any]:
        """Every result that is there."""
        with self._mutex:
            done, self._done = self._done, {}
        return done

    def close(self) -> None:
        """Close the descriptor. Idempotent."""
        with self._mutex:
            if not self._closed:
                self._closed = True
                self._event.close()

    def __len__(self) -> int:
        return len(self._done)


@dataclass(slots=True, eq=False)
class Task:
    """One task. unanswered, held: parts without an answer, parts whose memory the store has not let go of."""

    number: int
    keys: list[Any]
    objects: list[Any] = field(default_factory=list)
    """Kept while the store may touch them: a view of one does not keep its memory."""
    unanswered: int = 0
    held: int = 0
    good: list[int] = field(default_factory=list)
    """Indices of the keys that succeeded."""
    new: list[int] = field(default_factory=list)
    """Of these, the ones that were not in the store before."""
    sizes: list[int] = field(default_factory=list)
    """Bytes of each object."""
    late: bool = False
    """Whether the store has kept a part beyond its deadline."""
    begin: Callable[[], None] | None = None
    timer: threading.Timer | None = None
    counted: bool = False
    """Whether it has left the number of stores without an answer."""
    ended: bool = False
    mutex: threading.Lock = field(default_factory=threading.Lock)


class Turnstile:
    """Lets so many stores into the session at once; the deadline of the others has not begun."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._mutex = threading.Lock()
        self._waiting: deque[Task] = deque()
        self._inside = 0
        self._pumping = False

    def enter(self, task: Task) -> None:
        """`task.begin` is called when there is room, perhaps at once."""
        with self._mutex:
            self._waiting.append(task)
        self._pump()

    def leave(self, task: Task) -> None:
        """A store has its answer."""
        with self._mutex:
            if task.counted:
                task.counted = False
                self._inside -= 1
        self._pump()

    def _pump(self) -> None:
        """Begin what there is room for. An answer that comes while one is begun is seen by the loop, not nested."""
        while True:
            with self._mutex:
                if self._pumping or not self._waiting or self._inside >= self._most:
                    return
                self._pumping = True
                self._inside += 1
                task = self._waiting.popleft()
                task.counted = True
            try:
                begin, task.begin = task.begin, None
                if begin is not None:
                    begin()
            finally:
                with self._mutex:
                    self._pumping = False

    def __len__(self) -> int:
        return len(self._waiting)


class Locks:
    """Keys that LMCache looked up and has not unlocked: its eviction may not delete them."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._held: Counter[Hashable] = Counter()

    def lock(self, keys: Iterable[Hashable]) -> None:
        """Once more each."""
        with self._mutex:
            self._held.update(keys)

    def unlock(self, keys: Iterable[Hashable]) -> None:
        """Once less each; a key that is not locked stays so."""
        with self._mutex:
            for key in keys:
                left = self._held.get(key, 0) - 1
                if left > 0:
                    self._held[key] = left
                else:
                    self._held.pop(key, None)

    def free(self, keys: Iterable[Any]) -> list[Any]:
        """Those that nobody has locked."""
        with self._mutex:
            return [key for key in keys if key not in self._held]

    def __len__(self) -> int:
        return sum(self._held.values())
