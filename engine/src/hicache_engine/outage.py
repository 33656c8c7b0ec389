"""What an engine's users notice when its store dies: a loop of prompts while the server is killed and comes back.

Two engines share one model: one over the store, one without L3. They answer the same prompts in turn, L1 and L2
emptied before each, so that every hit is L3's and every time to first token has its twin of the same moment.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from hicache_core.errors import DevServerError, HiCacheError
from hicache_core.plugin.dev_servers import DevServer, make_dev_server

from .engine import Engine
from .job import Completion
from .sampling import SamplingParams
from .settings import EngineOptions
from .tokenizer import TokenIds

Say = Callable[[str], None]

PROMPTS = 3
PROMPT_TOKENS = 512
ANSWER_TOKENS = 8
DRAIN_SECONDS = 2.0
"""Bound on the wait for a prompt's pages to reach L3, or to be refused, before the next prompt."""
RESTART_SECONDS = 120.0
"""Bound on the wait for the server's second start, once the loop is over."""
MOST_RATIO = 1.3
"""Time to first token of misses, with the store and without L3: what may be noticed."""


class Turn(msgspec.Struct, kw_only=True):
    """One prompt, answered with the store and without."""

    phase: str
    at: float
    """Seconds since the loop began."""
    storage: int
    """Tokens from L3."""
    ttft_ms: float
    alone_ms: float
    wrong: bool = False
    failed: str = ""


class Outage:
    """Kills and restarts the server of `backend` under an engine. Everything happens on the caller's thread, but for
    the restart, whose time the prompts do not wait for."""

    def __init__(
        self, out: Path, options: EngineOptions, backend: str, *, down: float, patience: float, say: Say
    ) -> None:
        self.out, self.options, self.backend = out, options, backend
        self.down, self.patience, self.say = down, patience, say
        self.turns: list[Turn] = []

    def run(self) -> dict[str, Any]:
        """The report. Raises UnknownNameError for a store without a dev server, DevServerError, and what the
        engine raises."""
        self.out.mkdir(parents=True, exist_ok=True)
        with make_dev_server(self.backend, self.out.resolve() / f"{self.backend}-server") as server:
            self.say(f"loading {self.options.model}")
            model = self.options.load()
            over = msgspec.structs.replace(
                self.options.cache,
                hicache_storage_backend=server.backend,
                hicache_storage_backend_options=dict(server.options),
            )
            none = msgspec.structs.replace(
                self.options.cache, hicache_storage_backend=None, hicache_storage_backend_options={}
            )
            with (
                msgspec.structs.replace(self.options, cache=none).build(model) as alone,
                msgspec.structs.replace(self.options, cache=over).build(model) as engine,
            ):
                return self._loop(server, engine, alone)

    def _loop(self, server: DevServer, engine: Engine, alone: Engine) -> dict[str, Any]:
        prompts = self._prompts(engine)
        for ids in prompts:  # pages in the weights and lets torch choose its kernels
            alone.generate([ids], SamplingParams(max_tokens=2))
        self._began = time.monotonic()
        self.say("before: every prompt twice, the second time from L3")
        for ids in (*prompts, *prompts):
            self._turn("before", engine, alone, ids)
        self.say(f"kill -9 of the server; {self.down:g} s without it")
        killed = time.monotonic()
        server.kill()
        for ids in _round_robin(prompts):
            self._turn("down", engine, alone, ids)
            if time.monotonic() - killed >= self.down:
                break
        self.say("the server is started again")
        restart = _Restart(server)
        hit_at = None
        hits = 0
        for ids in _round_robin(prompts):
            turn = self._turn("after", engine, alone, ids)
            if turn.storage and hit_at is None:
                hit_at = time.monotonic()
            hits = hits + 1 if turn.storage else 0
            if hits == len(prompts) or time.monotonic() - restart.asked >= self.patience + self.down:
                break
        restart.finish()
        # A server may serve before it is known to be ready: then hits came back at once.
        back = None if hit_at is None or restart.at is None else max(0.0, hit_at - restart.at)
        return self._report(back, engine)

    def _turn(self, phase: str, engine: Engine, alone: Engine, ids: TokenIds) -> Turn:
        reference, _ = _answer(alone, ids)
        end, failed = _answer(engine, ids)
        assert reference is not None
        assert reference.ttft is not None
        turn = Turn(
            phase=phase,
            at=round(time.monotonic() - self._began, 2),
            storage=0 if end is None else end.usage.storage,
            ttft_ms=0.0 if end is None or end.ttft is None else round(end.ttft * 1e3, 1),
            alone_ms=round(reference.ttft * 1e3, 1),
            wrong=end is not None and end.text != reference.text,
            failed=failed,
        )
        self.turns.append(turn)
        said = "failed: " + failed if failed else f"{turn.storage} tokens from L3, {turn.ttft_ms:.0f} ms"
        self.say(f"{phase} {turn.at:6.1f} s: {said} (without L3 {turn.alone_ms:.0f} ms)")
        engine.cache.drain(DRAIN_SECONDS)
        return turn

    def _prompts(self, engine: Engine) -> list[TokenIds]:
        text = resources.files("hicache_engine").joinpath("prompt.txt").read_text(encoding="utf-8")
        return [engine.encode(f"Reader {number}.\n\n{text}")[:PROMPT_TOKENS] for number in range(PROMPTS)]

    def _report(self, first_hit: float | None, engine: Engine) -> dict[str, Any]:
        misses = [turn for turn in self.turns if not turn.storage and not turn.failed and turn.phase != "before"]
        ratios = sorted(turn.ttft_ms / turn.alone_ms for turn in misses)
        checks = {
            "no request failed": not any(turn.failed for turn in self.turns),
            "no text is wrong": not any(turn.wrong for turn in self.turns),
            "hits before the outage": any(turn.storage for turn in self.turns if turn.phase == "before"),
            "misses during it": any(turn.phase == "down" and not turn.storage for turn in self.turns),
            f"first token of misses, median, at most {MOST_RATIO:g} times that without L3": bool(ratios)
            and statistics.median(ratios) <= MOST_RATIO,
            f"hits again within {self.patience:g} s of the restart": first_hit is not None
            and first_hit <= self.patience,
            "the ledger balances": engine.cache.ledger.balanced(),
        }
        return {
            "backend": self.backend,
            "model": engine.model.name,
            "seconds_down": self.down,
            "requests": len(self.turns),
            "miss_ttft_ratio": {
                "median": round(statistics.median(ratios), 3) if ratios else None,
                "worst": round(ratios[-1], 3) if ratios else None,
                "count": len(ratios),
            },
            "seconds_to_first_hit": None if first_hit is None else round(first_hit, 2),
            "checks": checks,
            "ok": all(checks.values()),
            "turns": self.turns,
        }


class _Restart:
    """Starts a server while its caller goes on. `at`: when it was ready, on time.monotonic(); None before."""

    def __init__(self, server: DevServer) -> None:
        self.asked = time.monotonic()
        self.at: float | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(server,), name="restart", daemon=True)
        self._thread.start()

    def _run(self, server: DevServer) -> None:
        try:
            server.restart()
            self.at = time.monotonic()
        except BaseException as error:  # noqa: BLE001 - finish() raises it on the caller's thread
            self._error = error

    def finish(self) -> None:
        """Wait for it. Raises what the start raised, and DevServerError where it does not end."""
        self._thread.join(RESTART_SECONDS)
        if self._error is not None:
            raise self._error
        if self._thread.is_alive():
            raise DevServerError(f"the server was not started again within {RESTART_SECONDS:g} s")


def _answer(engine: Engine, ids: TokenIds) -> tuple[Completion | None, str]:
    engine.cache.reset()
    try:
        (end,) = engine.generate([ids], SamplingParams(max_tokens=ANSWER_TOKENS))
    except HiCacheError as error:
        return None, str(error)
    return end, ""


def _round_robin(prompts: list[TokenIds]) -> Iterator[TokenIds]:
    while True:
        yield from prompts
