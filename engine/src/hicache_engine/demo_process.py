"""Starting the demo's processes, and what they share: where they write, what they are asked."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch

from hicache_core.config.model import HiCacheConfig
from hicache_core.errors import HiCacheError

from .demo_store import Place, Shelf
from .demo_worker import Life, WorkerJob, WorkerResult
from .settings import EngineOptions
from .spinning import limit_spinning

CHILD_SECONDS = 300.0


class DemoError(HiCacheError):
    """A process of the demo failed; carries the end of what it said."""


class Check(msgspec.Struct):
    """One thing that must hold."""

    name: str
    passed: bool
    detail: str


@dataclass
class Stage:
    """Where the demo plays: its folder, its store, its model, its prompt, and the checks made so far."""

    out: Path
    options: EngineOptions
    prompt: str
    shelf: Shelf
    max_tokens: int = 32
    checks: list[Check] = field(default_factory=list)

    @property
    def page_size(self) -> int:
        """Tokens per page."""
        return self.options.cache.page_size

    def check(self, name: str, passed: bool, detail: str) -> None:
        """Note a check."""
        self.checks.append(Check(name, passed, detail))

    def life(self, name: str, place: Place | None, **how: Any) -> Life:
        """A life over the store at `place`; without L3 for None."""
        cache = self.cache_on(None, {}) if place is None else self.cache_on(place.backend, place.options)
        return Life(name=name, cache=cache, **({"tenant": "" if place is None else place.tenant} | how))

    def cache_on(self, backend: str | None, options: Mapping[str, Any]) -> HiCacheConfig:
        """The hierarchy over any backend."""
        return msgspec.structs.replace(
            self.options.cache, hicache_storage_backend=backend, hicache_storage_backend_options=dict(options)
        )

    def run(
        self, name: str, lives: list[Life], *, alternate: bool = False, options: EngineOptions | None = None
    ) -> WorkerResult:
        """A process from start to end. Raises DemoError where it fails."""
        process = self.start(name, lives, alternate=alternate, options=options)
        try:
            code = process.wait(CHILD_SECONDS)
        except subprocess.TimeoutExpired as error:
            process.kill()
            process.wait()
            raise DemoError(
                f"process {name} has not ended within {CHILD_SECONDS:.0f} s: {self._said(name)}"
            ) from error
        if code:
            raise DemoError(f"process {name} ended with {code}: {self._said(name)}")
        return msgspec.json.decode((self._work / f"{name}.result.json").read_bytes(), type=WorkerResult)

    def start(
        self, name: str, lives: list[Life], *, alternate: bool = False, options: EngineOptions | None = None
    ) -> subprocess.Popen[bytes]:
        """A process under way."""
        work = self._work
        (work / name).mkdir(parents=True, exist_ok=True)
        job = WorkerJob(
            options=options or self.options,
            prompt=self.prompt,
            max_tokens=self.max_tokens,
            lives=lives,
            alternate=alternate,
            logits_dir=str(work / name),
        )
        job_path, result_path = work / f"{name}.job.json", work / f"{name}.result.json"
        job_path.write_bytes(msgspec.json.encode(job))
        environment = dict(os.environ)
        limit_spinning(environment)
        command = [sys.executable, "-m", "hicache_engine.demo_worker", str(job_path), str(result_path)]
        with (work / f"{name}.log").open("wb") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def logits_diff(self, one: str, other: str) -> float:
        """Largest difference between the logits that two lives kept (`process/life`)."""
        a, b = (torch.load(self._work / f"{name}.pt", map_location="cpu", weights_only=True) for name in (one, other))
        return float((a - b).abs().max())

    @property
    def _work(self) -> Path:
        return self.out / "work"

    def _said(self, name: str) -> str:
        return (self._work / f"{name}.log").read_text(errors="replace")[-2000:].strip() or "(it said nothing)"
