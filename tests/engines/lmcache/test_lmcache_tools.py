"""LMCache's own tools and server over our plugin: its bench, its check, its server with a client that verifies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hicache_core.plugin.dev_servers import ServerProcess, free_ports

LMCACHE = str(Path(sys.executable).with_name("lmcache"))
QUIET = {"LMCACHE_TRACK_USAGE": "false", "LMCACHE_DISABLE_BANNER": "1", "LMCACHE_LOG_LEVEL": "ERROR"}
BOUND = 180.0


def spec(params: dict[str, Any], **module: str) -> str:
    where = {"module_path": "hicache_core.adapters.lmcache", "class_name": "HiCacheL2Adapter"} | module
    return json.dumps({"type": "plugin", **where, "adapter_params": params})


def run(argv: list[str], cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    told = {**os.environ, **QUIET, **environment}
    return subprocess.run(argv, cwd=cwd, env=told, capture_output=True, text=True, timeout=BOUND, check=False)


def bench_l2(adapter: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    argv = [LMCACHE, "bench", "l2", "--l2-adapter", adapter, "--num-keys", "8", "--data-size-kb", "64"]
    argv += ["--rounds", "2", "--no-skip-verify", "--lookup-max-hit-rate", "1.0"]
    return run(argv, cwd, **environment)


def test_bench_l2_compares_what_it_loads(harness: Any, tmp_path: Path) -> None:
    done = bench_l2(spec(harness.file_params(tmp_path / "kv")), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All 8 keys data verified OK" in done.stdout
    assert done.stdout.count("found=8/8") == done.stdout.count("loaded=8/8") == 3, done.stdout


WITHOUT_SEALS = """
from hicache_core.adapters.lmcache import HiCacheL2Adapter, HiCacheL2AdapterConfig
from hicache_core.adapters.lmcache import options
from hicache_core.storage.settings import SessionSettings

class Unsealed(options.L2Options):
    def settings(self, where):
        return SessionSettings(seal=False, lent_pools=True)

class UnsealedConfig(HiCacheL2AdapterConfig):
    @classmethod
    def from_dict(cls, d):
        return cls(options.parse_door_options(Unsealed, d, "test"))

class UnsealedAdapter(HiCacheL2Adapter):
    config_class_name = "UnsealedConfig"
"""


def test_the_bench_would_see_other_bytes(harness: Any, tmp_path: Path) -> None:
    """The same adapter without seals, over a store that flips bits: the check above can fail."""
    (tmp_path / "unsealed.py").write_text(WITHOUT_SEALS)
    params = harness.fault_params(tmp_path / "kv", {"flip": 1.0})
    adapter = spec(params, module_path="unsealed", class_name="UnsealedAdapter")
    assert bench_l2(adapter, tmp_path, PYTHONPATH=str(tmp_path)).returncode == 1


def test_lmcaches_own_check(harness: Any, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "lmcache.v1.basic_check", "--mode", "test_l2_adapter", "--num-keys", "4"]
    done = run([*argv, "--l2-adapter", spec(harness.file_params(tmp_path / "kv"))], tmp_path)
    assert "Validation (content): 4/4" in done.stdout, done.stdout + done.stderr


@contextmanager
def served(params: dict[str, Any], directory: Path) -> Iterator[tuple[int, int]]:
    """LMCache's server; its two ports."""
    rpc, http = free_ports(2)
    argv = [LMCACHE, "server", "--host", "127.0.0.1", "--port", str(rpc), "--http-host", "127.0.0.1"]
    argv += ["--http-port", str(http), "--l1-size-gb", "0.25", "--eviction-policy", "LRU", "--chunk-size", "256"]
    argv += ["--max-gpu-workers", "1", "--disable-observability", "--supported-transfer-mode", "engine_driven"]
    argv += ["--l2-adapter", spec(params)]
    process = ServerProcess(
        "lmcache",
        argv,
        directory=directory,
        environment={**os.environ, **QUIET},
        ready=lambda: get(http, "/healthcheck") is not None,
        ready_within=BOUND,
    )
    process.start()
    try:
        yield rpc, http
    finally:
        process.stop()


def get(port: int, path: str) -> Any:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return json.loads(answer.read() or b"{}")
    except (OSError, urllib.error.URLError, ValueError):
        return None


def bench_server(ports: tuple[int, int], cwd: Path) -> dict[str, Any]:
    argv = [LMCACHE, "bench", "server", "--rpc-url", f"tcp://127.0.0.1:{ports[0]}"]
    argv += ["--url", f"http://127.0.0.1:{ports[1]}", "--mode", "cpu", "--num-blocks", "256", "--num-tokens", "512"]
    argv += ["--kvcache-shape-spec", "(2,256,16,4,32):float16:2", "--start", "0", "--end", "3", "--interval", "0"]
    done = run([*argv, "--format", "json"], cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    report: dict[str, Any] = json.JSONDecoder().raw_decode(done.stdout, done.stdout.index("{"))[0]
    return report


def test_the_server_before_and_after_a_restart(harness: Any, tmp_path: Path) -> None:
    params = harness.file_params(tmp_path / "kv")
    pause, kept = threading.Event(), tmp_path / "kv"
    with served(params, tmp_path / "first") as ports:
        report = bench_server(ports, tmp_path)
        assert "cold_store" in json.dumps(report)
        (ok,) = found(report, "checksum_ok")
        assert ok == 3
        for _ in range(600):
            if len(harness.page_files(kept)) == 6:
                break
            pause.wait(0.05)
        assert len(harness.page_files(kept)) == 6
        status = json.dumps(get(ports[1], "/status"))
        assert "HiCacheL2Adapter" in status
    with served(params, tmp_path / "second") as ports:
        report = bench_server(ports, tmp_path)
        assert "cold_store" not in json.dumps(report), "what the first server stored was not found"
        listed = get(ports[1], "/cache/objects?tier=l2")
    assert len(harness.page_files(kept)) == 6
    assert len(listed["entries"]) == 6


def found(report: Any, name: str) -> list[Any]:
    """Every value of that name in a nested report."""
    if isinstance(report, dict):
        here = [value for key, value in report.items() if key == name]
        return here + [value for child in report.values() for value in found(child, name)]
    if isinstance(report, list):
        return [value for child in report for value in found(child, name)]
    return []
