"""The demo: a model answers from KV pages that another, already dead process wrote, and damage costs only time.

Process A answers a prompt and stores its KV (write-through), then ends. Process B, a new one, answers the same
prompt from the store. Then the cases: each gives a new process a store, a model or a tenant with which some or all
pages must not be used, and asks for the same answer as without any store. Everything in the report is measured.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import torch

from hicache_core.config.model import HiCacheConfig
from hicache_core.errors import HiCacheError
from hicache_core.keys import page_hashes

from .demo_cases import copy_store, flip_byte, kill_while_writing, page_files, perturb_weights
from .demo_worker import Answer, Life, WorkerJob, WorkerResult
from .loading import smollm2_path
from .settings import EngineOptions

QUESTION = "\n\nIn two sentences: why did the keeper trust the date on a page more than the word that led him to it?"
CHILD_SECONDS = 300.0
KILL_ATTEMPTS = 4

Say = Callable[[str], None]


class DemoError(HiCacheError):
    """A process of the demo failed; carries the end of what it said."""


class Check(msgspec.Struct):
    """One thing that must hold."""

    name: str
    passed: bool
    detail: str


class Demo:
    """Runs the whole demo in `out`, which is emptied first. `say` is told of each step."""

    def __init__(self, out: Path, options: EngineOptions, *, rounds: int, min_ratio: float, say: Say) -> None:
        self.out, self.options, self.rounds, self.min_ratio, self.say = out, options, rounds, min_ratio, say
        self.prompt = resources.files("hicache_engine").joinpath("prompt.txt").read_text(encoding="utf-8") + QUESTION
        self.max_tokens = 32
        self.checks: list[Check] = []
        self.store = out / "store"

    def run(self) -> dict[str, Any]:
        """Everything; the report, also written to report.json."""
        began = time.monotonic()
        for name in ("store", "cases", "work"):
            shutil.rmtree(self.out / name, ignore_errors=True)
        (self.out / "work").mkdir(parents=True)
        cold = self._writer()
        report = self._reader(cold)
        report["cases"] = self._cases(cold)
        report["checks"] = self.checks
        report["ok"] = all(check.passed for check in self.checks)
        report["seconds"] = round(time.monotonic() - began, 1)
        data = msgspec.json.format(msgspec.json.encode(report), indent=2)
        (self.out / "report.json").write_bytes(data + b"\n")
        return report

    # The two processes

    def _writer(self) -> WorkerResult:
        self.say("process A: answers the prompt, stores its KV, ends")
        life = Life(name="writer", cache=self._cache(self.store), keep_logits=True)
        result = self._child("A", [life])
        self._check(
            "A stored the prompt", bool(result.answers["writer"][0].stored), f"{len(page_files(self.store))} pages"
        )
        return result

    def _reader(self, cold: WorkerResult) -> dict[str, Any]:
        self.say(f"process B: answers it from the store, and without it, {self.rounds} times in turn")
        aligned = (cold.prompt_tokens - 1) // self.options.chunk * self.options.chunk
        lives = [
            Life(name="cold", cache=self._cache(None), rounds=self.rounds),
            Life(name="warm", cache=self._cache(self.store), rounds=self.rounds, keep_logits=True),
            Life(name="aligned", cache=self._cache(self.store), reuse_limit=aligned, keep_logits=True),
        ]
        result = self._child("B", lives, alternate=True)
        warm, before = result.answers["warm"], cold.answers["writer"][0]
        diff = {"aligned": self._logits("A/writer", "B/aligned"), "unaligned": self._logits("A/writer", "B/warm")}
        ttft = _ttft(result.answers["cold"], warm)
        tiers = warm[0].tokens_by_tier
        self._check("B is another process", cold.pid != result.pid, f"{cold.pid}, then {result.pid}")
        self._check("B read at least 1,000 tokens from L3", tiers["storage"] >= 1000, str(tiers))
        self._check(
            "logits are bit-equal at a chunk boundary", diff["aligned"] == 0.0, f"max |Δ| {diff['aligned']:g}"
        )
        self._check("logits agree elsewhere", diff["unaligned"] <= 1e-3, f"max |Δ| {diff['unaligned']:g}")
        equal = all(answer.text == before.text for name in result.answers for answer in result.answers[name])
        self._check("the text is the same", equal, before.text)
        said = f"{ttft['cold']:.0f} ms cold, {ttft['warm']:.0f} ms warm"
        self._check(f"first token at least {self.min_ratio:g} times sooner", ttft["ratio"] >= self.min_ratio, said)
        self._check("the ledger balances", all(result.ledger_balanced.values()), str(result.ledger_balanced))
        return {
            "model": result.model,
            "weights": result.weights,
            "pid_cold": cold.pid,
            "pid_warm": result.pid,
            "prompt_tokens": result.prompt_tokens,
            "tokens_by_tier": tiers,
            "logits_max_abs_diff": diff,
            "text": before.text,
            "text_equal": equal,
            "ttft_ms": ttft,
        }

    # The cases

    def _cases(self, cold: WorkerResult) -> dict[str, Any]:
        alone = Life(name="alone", cache=self._cache(None))
        lives = [alone, *self._damaged(cold), *self._killed(cold)]
        lives.append(Life(name="other_tenant", cache=self._cache(self.store), tenant="someone-else", store=False))
        down = {"inner": "file", "root": str(self.store), "fail": 1.0, "seed": 7}
        lives.append(Life(name="l3_down", cache=self._cache(None, "fault", down), store=False))
        self.say("process C: a damaged page, a killed writer's pages, another tenant, a store that fails every call")
        result = self._child("C", lives)
        reference = result.answers["alone"][0]
        cases = {
            n: self._case(n, result.answers[n], reference)
            for n in ("corrupt_page", "killed_writer", "other_tenant", "l3_down")
        }
        cases["corrupt_page"]["healed"] = healed = result.answers["corrupt_page"][1].tokens_by_tier
        for name, (answers, other) in self._other_models().items():
            cases[name] = self._case(name, answers, other)
        self._judge(cold, cases, healed)
        return cases

    def _damaged(self, cold: WorkerResult) -> list[Life]:
        root = copy_store(self.store, self.out / "cases" / "corrupt_page")
        flipped = flip_byte(root, self._page_hash(self._damaged_page(cold)))
        self.say(f"one bit of one stored page is flipped: {flipped.name[:24]}…")
        return [Life(name="corrupt_page", cache=self._cache(root), rounds=2)]

    def _killed(self, cold: WorkerResult) -> list[Life]:
        whole, left = len(page_files(self.store)), 0
        for attempt in range(KILL_ATTEMPTS):
            root = self.out / "cases" / f"killed_writer_{attempt}"
            self.say("a process is killed with -9 while it writes")
            process = self._start("killed", [Life(name="writer", cache=self._cache(root))])
            left = kill_while_writing(process, root, whole)
            if 0 < left < whole:
                break
        self._check("the writer was killed in mid backup", 0 < left < whole, f"{left} of {whole} pages were whole")
        return [Life(name="killed_writer", cache=self._cache(root))]

    def _other_models(self) -> dict[str, tuple[list[Answer], Answer]]:
        """other_weights and other_dtype, each with its own answer without a store."""
        lives = [
            Life(name="alone", cache=self._cache(None)),
            Life(name="case", cache=self._cache(self.store), store=False),
        ]
        self.say("process D: the same store under other weights")
        if self.options.model == "random":
            weights = msgspec.structs.replace(self.options, seed=self.options.seed + 1)
        else:
            source = smollm2_path() if self.options.model == "smollm2" else Path(self.options.model)
            other = perturb_weights(source, self.out / "cases" / "other_weights" / source.name)
            weights = msgspec.structs.replace(self.options, model=str(other))
        found = {"other_weights": self._child("D", lives, options=weights).answers}
        self.say("process E: the same store under another dtype")
        dtype = "float32" if self.options.dtype == "bfloat16" else "bfloat16"
        found["other_dtype"] = self._child(
            "E", lives, options=msgspec.structs.replace(self.options, dtype=dtype)
        ).answers
        return {name: (answers["case"], answers["alone"][0]) for name, answers in found.items()}

    def _case(self, name: str, answers: list[Answer], reference: Answer) -> dict[str, Any]:
        first = answers[0]
        equal = all(answer.text == reference.text for answer in answers)
        self._check(f"{name}: the text is the same as without a store", equal, first.ended or "all found")
        return {
            "tokens_by_tier": first.tokens_by_tier,
            "text_equal": equal,
            "reason": _reason(first),
            "lost": first.lost,
        }

    def _judge(self, cold: WorkerResult, cases: dict[str, Any], healed: dict[str, int]) -> None:
        size = self.options.cache.page_size
        before = self._damaged_page(cold) * size
        found = cases["corrupt_page"]["tokens_by_tier"]["storage"]
        detail = f"{found} tokens before it used, reason {cases['corrupt_page']['reason']}"
        self._check("corrupt_page: nothing from the page on", found == before and "corrupt" in detail, detail)
        most = (cold.prompt_tokens - 1) // size * size
        self._check("corrupt_page: healed", healed["storage"] == most, f"{healed['storage']} tokens the next time")
        for name in ("other_weights", "other_dtype", "other_tenant", "l3_down"):
            tiers = cases[name]["tokens_by_tier"]
            self._check(f"{name}: no token from L3", tiers["storage"] == 0, f"{tiers}, {cases[name]['reason']}")
        left = cases["killed_writer"]["tokens_by_tier"]["storage"]
        self._check("killed_writer: less than all from L3", left < most, f"{left} tokens")

    # Parts

    def _cache(
        self, root: Path | None, backend: str | None = None, options: dict[str, Any] | None = None
    ) -> HiCacheConfig:
        backend = backend or (None if root is None else "file")
        return msgspec.structs.replace(
            self.options.cache,
            hicache_storage_backend=backend,
            hicache_storage_backend_options=options or ({} if root is None else {"root": str(root.resolve())}),
        )

    def _damaged_page(self, cold: WorkerResult) -> int:
        return cold.prompt_tokens // self.options.cache.page_size // 2

    def _page_hash(self, page: int) -> str:
        tokenizer = self.options.load().tokenizer
        ids = tokenizer.encode(tokenizer.render([{"role": "user", "content": self.prompt}]))
        return page_hashes(ids, self.options.cache.page_size)[page]

    def _logits(self, one: str, other: str) -> float:
        a, b = (torch.load(self.out / "work" / f"{name}.pt", weights_only=True) for name in (one, other))
        return float((a - b).abs().max())

    def _check(self, name: str, passed: bool, detail: str) -> None:
        self.checks.append(Check(name, passed, detail))

    def _child(
        self, name: str, lives: list[Life], *, alternate: bool = False, options: EngineOptions | None = None
    ) -> WorkerResult:
        process = self._start(name, lives, alternate=alternate, options=options)
        work = self.out / "work"
        try:
            code = process.wait(CHILD_SECONDS)
        except subprocess.TimeoutExpired as error:
            process.kill()
            raise DemoError(
                f"process {name} has not ended within {CHILD_SECONDS:.0f} s: {self._said(name)}"
            ) from error
        if code:
            raise DemoError(f"process {name} ended with {code}: {self._said(name)}")
        return msgspec.json.decode((work / f"{name}.result.json").read_bytes(), type=WorkerResult)

    def _start(
        self, name: str, lives: list[Life], *, alternate: bool = False, options: EngineOptions | None = None
    ) -> subprocess.Popen[bytes]:
        work = self.out / "work"
        (work / name).mkdir(exist_ok=True)
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
        with (work / f"{name}.log").open("wb") as log:
            command = [sys.executable, "-m", "hicache_engine.demo_worker", str(job_path), str(result_path)]
            return subprocess.Popen(command, stdout=log, stderr=log)

    def _said(self, name: str) -> str:
        return (self.out / "work" / f"{name}.log").read_text(errors="replace")[-2000:].strip() or "(it said nothing)"


def _reason(answer: Answer) -> str:
    return next(iter(answer.lost), "") or answer.ended


def _ttft(cold: list[Answer], warm: list[Answer]) -> dict[str, Any]:
    a, b = ([round(answer.ttft_ms, 2) for answer in answers] for answers in (cold, warm))
    medians = statistics.median(a), statistics.median(b)
    return {
        "cold": medians[0],
        "warm": medians[1],
        "ratio": round(medians[0] / medians[1], 2),
        "all": {"cold": a, "warm": b},
    }
