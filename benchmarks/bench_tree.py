"""The radix tree against SGLang's Rust and Python cores: same workloads, one run, rounds alternating.

Keys go in as array('q'), so the conversion of tokens counts, as does the result with its device indices; inserts
allocate their slots. SGLang's code runs in its own process and environment where that has been set up in
.peers/sglang (see ../shared/peers/sglang_cpu); without it only our own figures are taken.
"""

from __future__ import annotations

import importlib.util
import json
import pathlib
import statistics
import subprocess
import sys
import time
from array import array
from types import ModuleType
from typing import Any

from hicache_core.pools import SlotAllocator
from hicache_core.tree import RadixTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
PEER = ROOT.parent / "shared" / "peers" / "sglang_cpu"
ENVIRONMENT = ROOT / ".peers" / "sglang" / "env.sh"
PAGE, SMALL, LARGE = 16, 1_000, 100_000
CHUNK, FRESH = 60, 3  # as in sglang_tree_peer.py

Times = dict[str, float]


class Sglang:
    """One core of SGLang's tree in a process of its own."""

    def __init__(self, core: str) -> None:
        self.core = core
        script = ROOT / "benchmarks/sglang_tree_peer.py"
        command = f'. "{ENVIRONMENT}" && exec "${{PEER_PY:-$SGL_PY}}" "{script}" "{PEER}" {core}'
        self._process = subprocess.Popen(
            ["sh", "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def ask(self, request: str) -> Times:
        """One measurement."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(request, file=self._process.stdin, flush=True)
        for line in self._process.stdout:
            if line.startswith("RESULT "):
                times: Times = json.loads(line[len("RESULT ") :])
                return times
        raise RuntimeError(f"SGLang's {self.core} tree ended with code {self._process.wait()}")

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def match_all(tree: RadixTree, keys: list[array[int]]) -> float:
    """Microseconds a match: the median over chunks, so that a busy machine's other work is left out."""
    times = []
    for first in range(0, len(keys), CHUNK):
        chunk = keys[first : first + CHUNK]
        start = time.perf_counter()
        for key in chunk:
            tree.match_prefix(key)
        times.append((time.perf_counter() - start) / len(chunk) * 1e6)
    return statistics.median(times)


def insert_all(tree: RadixTree, slots: SlotAllocator, keys: list[array[int]]) -> float:
    """Microseconds an insert, slots allocated on the way."""
    start = time.perf_counter()
    for key in keys:
        taken = slots.alloc(len(key) // PAGE)
        assert taken is not None
        tree.insert(key, taken)
    return (time.perf_counter() - start) / len(keys) * 1e6


def ours_disjoint(keys: list[array[int]]) -> Times:
    """Fresh trees; the median insert of several, since one takes only milliseconds in all."""
    inserts = []
    for _ in range(FRESH):
        tree, slots = RadixTree(PAGE), SlotAllocator(200_000 // PAGE)
        inserts.append(insert_all(tree, slots, keys))
    times = {"insert": statistics.median(inserts), "match": match_all(tree, keys * 20)}
    assert tree.match_prefix(keys[-1]).device_hit_length == len(keys[-1])
    return times


class Branching:
    """Our tree of about `nodes` nodes."""

    def __init__(self, workloads: ModuleType, nodes: int) -> None:
        keys = workloads.branching(nodes)
        self.tree = RadixTree(PAGE)
        self.insert = insert_all(self.tree, SlotAllocator(len(keys) * 2048 // PAGE), keys)
        self.sample = workloads.queries(keys)

    def times(self) -> Times:
        """Random queries, and the same 60 again and again."""
        return {"match": match_all(self.tree, self.sample), "hot": match_all(self.tree, self.sample[:60] * 20)}


def missing() -> str | None:
    """Why SGLang cannot be measured here."""
    for path in (PEER / "bench_tree.py", ENVIRONMENT):
        if not path.exists():
            return f"{path} is not there: run ../shared/peers/sglang_cpu/setup.sh .peers/sglang"
    return None


def load_workloads() -> ModuleType:
    """The key sets that both sides use."""
    spec = importlib.util.spec_from_file_location("workloads", PEER / "workloads.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def row(what: str, limit: float, ours: list[float], base: list[float], against: str) -> dict[str, Any]:
    """One line of the table: medians in microseconds, their ratio, and whether it is within the limit."""
    mine, theirs = statistics.median(ours), statistics.median(base)
    ratio = mine / theirs
    return {
        "what": what,
        "ours_us": mine,
        "base_us": theirs,
        "against": against,
        "ratio": ratio,
        "limit": limit,
        "ok": ratio <= limit,
    }


def measure(rounds: int = 5, large: int = LARGE) -> dict[str, Any]:
    """Rows of medians over `rounds` alternating rounds; `skipped` says why rows are missing."""
    if not (PEER / "workloads.py").exists():
        return {"skipped": f"{PEER / 'workloads.py'} is not there", "rows": []}
    workloads, reason = load_workloads(), missing()
    peers = {core: Sglang(core) for core in ("rust", "python")} if reason is None else {}
    keys = workloads.disjoint()
    small, big = Branching(workloads, SMALL), Branching(workloads, large)
    seen: dict[str, list[Times]] = {}
    try:
        for _ in range(rounds + 1):
            seen.setdefault("ours disjoint", []).append(ours_disjoint(keys))
            seen.setdefault("ours small", []).append(small.times())
            seen.setdefault("ours large", []).append(big.times())
            for core, peer in peers.items():
                seen.setdefault(f"{core} disjoint", []).append(peer.ask("disjoint"))
                if core == "rust":  # the Python core takes a quarter of a millisecond each there
                    seen.setdefault(f"{core} small", []).append(peer.ask(f"branching {SMALL}"))
    finally:
        for peer in peers.values():
            peer.close()

    def get(name: str, figure: str) -> list[float]:
        return [times[figure] for times in seen[name][1:]]  # the first round warms up

    rows = []
    for core in peers:
        for what, figure, limit in (("match", "match", 1.0), ("insert", "insert", 1.5)):
            ours, theirs = get("ours disjoint", figure), get(f"{core} disjoint", figure)
            rows.append(row(f"{what}, 60 disjoint keys of 2,048", limit, ours, theirs, f"SGLang {core}"))
    for what, figure in (("random", "match"), ("60 hot", "hot")) if peers else ():
        ours, theirs = get("ours small", figure), get("rust small", figure)
        rows.append(row(f"match, {SMALL:,} nodes, {what}", 1.5, ours, theirs, "SGLang rust"))
    ours, base = get("ours large", "match"), get("ours small", "match")
    rows.append(row(f"match, {large:,} nodes, random", 2.5, ours, base, f"ours, {SMALL:,} nodes"))
    return {"rows": rows, "skipped": reason, "rounds": rounds}


def show(result: dict[str, Any]) -> None:
    """Print the table."""
    for line in result["rows"]:
        print(
            f"{line['what']:38} {line['ours_us']:8.1f} us  {line['base_us']:8.1f} us {line['against']:18} "
            f"{line['ratio']:5.2f} of {line['limit']:.1f}  {'ok' if line['ok'] else 'MISSED'}"
        )
    if result["skipped"]:
        print("skipped:", result["skipped"])


if __name__ == "__main__":
    measured = measure(large=int(sys.argv[1]) if len(sys.argv) > 1 else LARGE)
    show(measured)
    sys.exit(0 if all(line["ok"] for line in measured["rows"]) else 1)
