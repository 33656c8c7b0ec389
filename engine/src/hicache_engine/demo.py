"""The demo: a model answers from KV pages that another, already dead process wrote, and damage costs only time.

Process A answers a prompt and stores its KV (write-through), then ends. Process B, a new one, answers the same
prompt from the store. Then the cases: each gives a new process a store, a model or a tenant with which some or all
pages must not be used, and asks for the same answer as without any store. Everything in the report is measured.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Mapping
from contextlib import closing
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from hicache_core.errors import ConfigError

from .demo_cases import Cases
from .demo_process import Stage
from .demo_store import make_shelf
from .demo_worker import Answer, Say, WorkerResult
from .settings import EngineOptions

QUESTION = "\n\nIn two sentences: why did the keeper trust the date on a page more than the word that led him to it?"
MARKER = ".hicache-demo"
"""Says that a folder is the demo's, whose content it may remove."""
MOST_DIFFERENCE = 1e-3
"""Of logits, where the resumed part is computed in other pieces than before."""


class Demo:
    """Runs the whole demo in `out`, whose results of an earlier run are removed. `say` is told of each step.

    backend, store_options: the store; without options a throwaway one of that kind is made, or its server started.
    """

    def __init__(
        self,
        out: Path,
        options: EngineOptions,
        *,
        rounds: int,
        min_ratio: float,
        say: Say,
        backend: str = "file",
        store_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.out, self.options, self.rounds, self.min_ratio, self.say = out, options, rounds, min_ratio, say
        self.backend, self.store_options = backend, store_options or {}

    def run(self) -> dict[str, Any]:
        """Everything; the report, also written to report.json. Raises DemoError where a process fails, ConfigError
        where the folder cannot be made, or holds what no demo has written, and what opening the store raises."""
        began = time.monotonic()
        self._clear(self.out)
        text = resources.files("hicache_engine").joinpath("prompt.txt").read_text(encoding="utf-8")
        with closing(make_shelf(self.out, self.backend, self.store_options)) as shelf:
            self.stage = stage = Stage(self.out, self.options, text + QUESTION, shelf)
            report = self._play(stage)
        report["seconds"] = round(time.monotonic() - began, 1)
        data = msgspec.json.format(msgspec.json.encode(report), indent=2)
        (self.out / "report.json").write_bytes(data + b"\n")
        return report

    def _play(self, stage: Stage) -> dict[str, Any]:
        cold = self._writer()
        report = {"backend": self.backend} | self._reader(cold)
        report["cases"] = Cases(stage, cold, self.say).run()
        report["checks"] = stage.checks
        report["ok"] = all(check.passed for check in stage.checks)
        return report

    def _clear(self, out: Path) -> None:
        """Make the folder, and remove what an earlier demo has left there, but nothing that is someone else's."""
        marker, made = out / MARKER, [out / name for name in ("store", "cases", "work")]
        theirs = [path for path in made if path.exists()]
        if theirs and not marker.exists():
            raise ConfigError(
                f"--out {out}: {theirs[0]} is there and no demo made it ({marker} is not there); name another folder"
            )
        try:
            out.mkdir(parents=True, exist_ok=True)
            marker.touch()
        except OSError as error:
            raise ConfigError(f"--out {out}: cannot be written: {error.strerror or error}") from error
        for path in theirs:
            shutil.rmtree(path, ignore_errors=True)

    def _writer(self) -> WorkerResult:
        self.say("process A: answers the prompt, stores its KV, ends")
        stage = self.stage
        main = stage.shelf.main
        result = stage.run("A", [stage.life("writer", main, keep_logits=True)])
        stored = bool(result.answers["writer"][0].stored)
        stage.check("process A stored the prompt", stored, f"{stage.shelf.pages(main)} pages")
        return result

    def _reader(self, cold: WorkerResult) -> dict[str, Any]:
        self.say(f"process B: answers it from the store, and without it, {self.rounds} times in turn")
        stage = self.stage
        aligned = (cold.prompt_tokens - 1) // stage.options.chunk * stage.options.chunk
        lives = [
            stage.life("cold", None, rounds=self.rounds),
            stage.life("warm", stage.shelf.main, rounds=self.rounds, keep_logits=True),
            stage.life("aligned", stage.shelf.main, reuse_limit=aligned, keep_logits=True),
        ]
        result = stage.run("B", lives, alternate=True)
        warm, before = result.answers["warm"], cold.answers["writer"][0]
        texts = [answer.text for answers in result.answers.values() for answer in answers]
        report = {
            "model": result.model,
            "weights": result.weights,
            "pid_cold": cold.pid,
            "pid_warm": result.pid,
            "prompt_tokens": result.prompt_tokens,
            "tokens_by_tier": warm[0].tokens_by_tier,
            "logits_max_abs_diff": {
                "aligned": stage.logits_diff("A/writer", "B/aligned"),
                "unaligned": stage.logits_diff("A/writer", "B/warm"),
            },
            "text": before.text,
            "text_equal": all(text == before.text for text in texts),
            "ttft_ms": _ttft(result.answers["cold"], warm),
        }
        self._judge(report, result)
        return report

    def _judge(self, report: dict[str, Any], result: WorkerResult) -> None:
        check, diff, ttft = self.stage.check, report["logits_max_abs_diff"], report["ttft_ms"]
        found = report["tokens_by_tier"]["storage"]
        check("process B is another one", report["pid_cold"] != report["pid_warm"], f"{report['pid_warm']}")
        check("it found at least 1,000 tokens in L3", found >= 1000, f"{found} of {report['prompt_tokens']}")
        check("logits are bit-equal at a chunk's end", diff["aligned"] == 0.0, f"max |Δ| {diff['aligned']:g}")
        close = diff["unaligned"] <= MOST_DIFFERENCE
        check(f"logits agree to {MOST_DIFFERENCE:g} elsewhere", close, f"max |Δ| {diff['unaligned']:.1e}")
        check("the text is the same", report["text_equal"], report["text"])
        said = f"{ttft['cold']:.0f} ms cold, {ttft['warm']:.0f} ms warm"
        check(f"first token at least {self.min_ratio:g} times sooner", ttft["ratio"] >= self.min_ratio, said)
        check("the ledgers balance", all(result.ledger_balanced.values()), f"of {len(result.ledger_balanced)} caches")


def _ttft(cold: list[Answer], warm: list[Answer]) -> dict[str, Any]:
    a, b = ([round(answer.ttft_ms, 2) for answer in answers] for answers in (cold, warm))
    medians = statistics.median(a), statistics.median(b)
    return {
        "cold": medians[0],
        "warm": medians[1],
        "ratio": round(medians[0] / medians[1], 2),
        "all": {"cold": a, "warm": b},
    }
