"""The throughput appendix: few bytes in each page size, so that slow stores finish too. Nothing depends on it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from hicache_conformance.backdoor import close_kits
from hicache_conformance.report import Appendix
from hicache_conformance.target import Resolved, Target
from hicache_core.errors import HiCacheError
from hicache_core.plugin.redaction import hider
from hicache_core.plugin.select import BackendChoice
from hicache_core.plugin.sizes import format_size
from hicache_core.storage.measure import measure_backend

PAGE_SIZES = (64 << 10, 256 << 10, 1 << 20)
PAGES, ROUNDS = 16, 3
STEPS = len(PAGE_SIZES) * (ROUNDS + 1)


def measure(target: Target, on_step: Callable[[], None] = lambda: None) -> Appendix:
    """Put, get and exists of 16 pages of each size through a sealed session, on a store of its own.

    What cannot be measured is named, never raised. on_step is called `STEPS` times at most.
    """
    appendix = Appendix()
    directory = Path(tempfile.mkdtemp(prefix="hicache-conformance-"))
    try:
        resolved = target.resolve(directory)
        for size in PAGE_SIZES:
            _measure(appendix, resolved, size, on_step)
    finally:
        close_kits()
        shutil.rmtree(directory, ignore_errors=True)
    return appendix


def _measure(appendix: Appendix, resolved: Resolved, size: int, on_step: Callable[[], None]) -> None:
    name, most = format_size(size), resolved.capabilities.max_page_bytes
    if most is not None and size + 4096 > most:
        appendix.skipped.append(f"{name}: the store takes pages of {format_size(most)} at most")
        return
    choice = BackendChoice(resolved.spec, resolved.options, "the suite's target")
    try:
        speed = measure_backend(choice, size, pages=PAGES, rounds=ROUNDS, on_round=on_step)
    except (HiCacheError, OSError, MemoryError) as error:
        appendix.skipped.append(f"{name}: {hider(resolved.options)(str(error))}")
        return
    appendix.speeds.append(speed)
    if speed.failed:
        appendix.skipped.append(f"{name}: {speed.failed} pages failed while it was measured")
