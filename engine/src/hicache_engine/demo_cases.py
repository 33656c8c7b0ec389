"""The demo's cases: pages that must not be used, and the answer that must not change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from hicache_core.keys import page_hashes
from hicache_core.namespace import Identity

from .demo_damage import kill_while_writing, perturb_weights
from .demo_process import Stage
from .demo_store import Place
from .demo_worker import Answer, Life, Say, WorkerResult
from .loading import smollm2_path

KILL_ATTEMPTS = 4


class Cases:
    """Runs the cases against the store that process `cold` has filled."""

    def __init__(self, stage: Stage, cold: WorkerResult, say: Say) -> None:
        self._stage, self._cold, self._say = stage, cold, say
        self._alone = stage.life("alone", None)

    def run(self) -> dict[str, Any]:
        """Every case by name: tokens_by_tier, text_equal, reason, lost."""
        cases = self._same_model() | self._other_models()
        self._judge(cases)
        return cases

    def _same_model(self) -> dict[str, Any]:
        stage = self._stage
        main = stage.shelf.main
        down = Place("fault", {"inner": main.backend, **main.options, "fail": 1.0, "seed": 7}, main.tenant)
        lives = [
            self._damaged(),
            self._killed(),
            stage.life("other_tenant", main, tenant="someone-else", store=False),
            stage.life("l3_down", down, store=False),
        ]
        self._say("process C: the damaged page, the killed writer's pages, another tenant, a store that fails")
        result = stage.run("C", [self._alone, *lives])
        cases = {life.name: self._case(life.name, result, result) for life in lives}
        cases["corrupt_page"]["tokens_by_tier_next_time"] = result.answers["corrupt_page"][1].tokens_by_tier
        return cases

    def _damaged(self) -> Life:
        tokenizer = self._stage.options.load().tokenizer
        ids = tokenizer.encode(tokenizer.render([{"role": "user", "content": self._stage.prompt}]))
        (mine,) = self._cold.identities.values()
        schema = msgspec.convert(mine, Identity).key_schema()
        (key,) = schema.physical([page_hashes(ids, self._stage.page_size)[self._damaged_page]])
        place, name = self._stage.shelf.damaged(key)
        self._say(f"one bit of a stored page is flipped: page {self._damaged_page}, {name[:16]}…")
        return self._stage.life("corrupt_page", place, rounds=2)

    def _killed(self) -> Life:
        stage = self._stage
        whole, left = self._cold.prompt_tokens // stage.page_size, 0
        for attempt in range(KILL_ATTEMPTS):
            place = stage.shelf.fresh(f"killed_writer_{attempt}")
            self._say("a process is killed with -9 while it writes")
            process = stage.start("killed", [stage.life("writer", stage.shelf.slowly(place))])
            left = kill_while_writing(process, stage.shelf, place, whole // 3)
            if 0 < left < whole:
                break
        stage.check("killed_writer: it was in mid backup", 0 < left < whole, f"{left} of {whole} pages were there")
        life = stage.life("killed_writer", place)
        life.cache = msgspec.structs.replace(life.cache, prefetch_threshold=stage.page_size)  # few are enough
        return life

    def _other_models(self) -> dict[str, Any]:
        stage = self._stage
        options = stage.options
        if options.model == "random":
            weights = msgspec.structs.replace(options, seed=options.seed + 1)
        else:
            source = smollm2_path() if options.model == "smollm2" else Path(options.model)
            other = perturb_weights(source, stage.out / "cases" / "other_weights" / source.name)
            weights = msgspec.structs.replace(options, model=str(other))
        other_dtype = "float32" if options.dtype == "bfloat16" else "bfloat16"
        dtype = msgspec.structs.replace(options, dtype=other_dtype)
        found = {}
        for process, name, asked in (("D", "other_weights", weights), ("E", "other_dtype", dtype)):
            self._say(f"process {process}: the same store under {name.replace('_', ' ')}")
            life = stage.life(name, stage.shelf.main, store=False)
            result = stage.run(process, [self._alone, life], options=asked)
            found[name] = self._case(name, result, result)
        return found

    def _case(self, name: str, result: WorkerResult, reference: WorkerResult) -> dict[str, Any]:
        answers, alone = result.answers[name], reference.answers["alone"][0]
        equal = all(answer.text == alone.text for answer in answers)
        self._stage.check(f"{name}: the text is the same as without a store", equal, answers[0].text)
        return {
            "tokens_by_tier": answers[0].tokens_by_tier,
            "text_equal": equal,
            "reason": self._reason(answers[0], result.identities[name]),
            "lost": answers[0].lost,
        }

    def _reason(self, answer: Answer, identity: dict[str, Any]) -> str:
        """Why the hits ended; for a miss, what about the pages that are there is different."""
        reason = next(iter(answer.lost), "") or answer.ended
        (mine,) = self._cold.identities.values()
        different = [name for name, value in identity.items() if value != mine[name]]
        return f"{reason} (other {', '.join(different)})" if different else reason

    def _judge(self, cases: dict[str, Any]) -> None:
        check, size = self._stage.check, self._stage.page_size
        damaged, before = cases["corrupt_page"], self._damaged_page * size
        found = damaged["tokens_by_tier"]["storage"]
        good = found == before and damaged["reason"] == "corrupt"
        check("corrupt_page: what comes before it is used", good, f"{found} tokens, then {damaged['reason']}")
        most = (self._cold.prompt_tokens - 1) // size * size
        healed = damaged["tokens_by_tier_next_time"]["storage"]
        check("corrupt_page: healed by the one who met it", healed == most, f"{healed} tokens the next time")
        for name in ("other_weights", "other_dtype", "other_tenant", "l3_down"):
            tiers, reason = cases[name]["tokens_by_tier"], cases[name]["reason"]
            check(f"{name}: no token from L3", tiers["storage"] == 0, f"{tiers['recomputed']} recomputed: {reason}")
        left = cases["killed_writer"]["tokens_by_tier"]["storage"]
        check("killed_writer: no more than it wrote from L3", left < most, f"{left} tokens")

    @property
    def _damaged_page(self) -> int:
        return self._cold.prompt_tokens // self._stage.page_size // 2
