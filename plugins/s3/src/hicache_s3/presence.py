"""Which keys have an object: one HEAD for each, as many at once as the options allow."""

from __future__ import annotations

from collections.abc import Sequence

from hicache_core.errors import StorageError
from hicache_s3.failures import is_missing, short
from hicache_s3.names import name_of
from hicache_s3.opening import Store
from hicache_s3.sweep import Sweep


class Presence:
    """Asks for the keys of one open store. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def run_of(self, keys: Sequence[str], deadline: float | None) -> int:
        """How many keys from the start have an object; asks no further than it must. Raises StorageError."""
        answers = self._ask(keys, deadline, until_absent=True)
        return next((i for i, there in enumerate(answers) if not there), len(keys))

    def contains(self, keys: Sequence[str], deadline: float | None) -> list[bool]:
        """Each key. Raises StorageError."""
        return [bool(there) for there in self._ask(keys, deadline, until_absent=False)]

    def _ask(self, keys: Sequence[str], deadline: float | None, *, until_absent: bool) -> list[bool | None]:
        """None: not asked, because an earlier key has no object."""
        store = self._store
        names = [name_of(key) for key in keys]
        paths = [f"{store.prefix}{name}" for name in names if name is not None]
        found: list[bool | None] = [None] * len(paths)
        errors: list[BaseException] = []

        def work(number: int) -> None:
            try:
                found[number] = store.client.exists(paths[number])
            except BaseException as error:  # noqa: BLE001 - told below; a panic in Rust is no Exception
                if not is_missing(error):
                    errors.append(error)
                    sweep.stop()
                    return
                found[number] = False
            if until_absent and found[number] is False and _known_before(found, number):
                sweep.stop()

        sweep = Sweep(store.threads.ask, len(paths), work, window=store.options.exists_concurrency)
        in_time = sweep.start().finish(deadline)
        store.counters.add(requests=len(paths))
        answers = list(found)
        if errors or not in_time:
            text = store.hide(short(errors[0])) if errors else f"no answer for all {len(paths)} keys by the deadline"
            store.counters.failed(text)
            raise StorageError(f"exists failed: {text}") from (errors[0] if errors else None)
        rest = iter(answers)
        return [False if name is None else next(rest) for name in names]


def _known_before(found: Sequence[bool | None], number: int) -> bool:
    """Whether every key before this one has answered: then the run ends here, or earlier."""
    return None not in found[:number]
