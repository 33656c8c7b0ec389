"""What an L3 with nothing to find adds to the time to the first token.

Two engines on one model, one with the file store and one without, answer prompts that nobody has asked before, in
turn. Both keep L2; writing (to L2, to L3) has ended before the next round begins.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from typing import Any

import msgspec
import numpy as np
from hicache_engine.engine import Engine
from hicache_engine.errors import ModelFileError
from hicache_engine.loading import LoadedModel, smollm2_path
from hicache_engine.sampling import SamplingParams
from hicache_engine.settings import EngineOptions
from hicache_engine.spinning import limit_spinning

from hicache_core.switching import share_the_gil

PROMPT_TOKENS = 1040
SETTLE_SECONDS = 60.0
ONE_TOKEN = SamplingParams(max_tokens=1, ignore_eos=True)


Times = tuple[float, float]
"""Milliseconds to the first token, and of these in the queue."""


def first_token(engine: Engine, seed: int) -> Times:
    """Ask a prompt never seen; whatever it wrote has ended on return."""
    ids = np.random.default_rng(seed).integers(3, 257, PROMPT_TOKENS).astype(np.uint32)
    (end,) = engine.generate([ids], ONE_TOKEN)
    assert end.ttft is not None
    assert end.queued is not None
    assert end.usage.cached == 0
    assert engine.cache.drain(SETTLE_SECONDS)
    return end.ttft * 1e3, end.queued * 1e3


def compare(name: str, model: LoadedModel, options: EngineOptions, rounds: int, percent: float) -> dict[str, Any]:
    """Both engines in turn, after one warm-up; added_ms: median over the pairs of the difference."""
    with tempfile.TemporaryDirectory() as root:
        stored = msgspec.structs.replace(
            options.cache, hicache_storage_backend="file", hicache_storage_backend_options={"root": root}
        )
        with (
            options.build(model) as without,
            msgspec.structs.replace(options, cache=stored).build(model) as with_store,
        ):
            pairs = []
            for turn in range(rounds + 1):
                first, second = (without, with_store) if turn % 2 else (with_store, without)
                times = {id(first): first_token(first, 2 * turn), id(second): first_token(second, 2 * turn + 1)}
                pairs.append((times[id(without)], times[id(with_store)]))
    base = statistics.median(a[0] for a, _ in pairs[1:])
    added = statistics.median(b[0] - a[0] for a, b in pairs[1:])
    limit = base * percent / 100 + 3.0
    return {
        "model": name,
        "rounds": rounds,
        "without_ms": round(base, 2),
        "with_ms": round(statistics.median(b[0] for _, b in pairs[1:]), 2),
        "added_in_queue_ms": round(statistics.median(b[1] - a[1] for a, b in pairs[1:]), 2),
        "added_ms": round(added, 2),
        "limit_ms": round(limit, 2),
        "within": added <= limit,
    }


def run(rounds: int) -> dict[str, Any]:
    """Both models, in this process."""
    share_the_gil()
    options = EngineOptions(model="random", device_tokens=4096)
    results = {"random": compare("random", options.load(), options, max(rounds, 5) * 9, 0.0)}
    try:
        smollm2_path()
    except ModelFileError as error:
        return results | {"real": {"skipped": str(error)}}
    options = EngineOptions(device_tokens=4096)
    return results | {"real": compare("smollm2", options.load(), options, rounds, 1.0)}


def measure(rounds: int = 5) -> dict[str, Any]:
    """`random` and, where its package is installed, `real`: medians in milliseconds, and whether within the limit.

    In a process of its own: how torch's threads wait is settled before torch is imported.
    """
    environment = dict(os.environ)
    limit_spinning(environment)
    command = [sys.executable, __file__, str(rounds)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(run(int(sys.argv[1]))))
    else:
        print(json.dumps(measure(), indent=2))
