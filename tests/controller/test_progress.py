import pytest

from hicache_core.clock import ManualClock
from hicache_core.config.model import HiCacheConfig
from hicache_core.controller.progress import StopVote, patience


def test_patience_grows_with_tokens_up_to_its_cap() -> None:
    today = HiCacheConfig()
    assert patience(today, 0) == 1.0
    assert patience(today, 4096) == 2.0
    assert patience(today, 1 << 20) == 257.0
    sglang = HiCacheConfig(prefetch_timeout_base=2.0, prefetch_timeout_per_ki_token=0.1, prefetch_timeout_max=30.0)
    assert patience(sglang, 1024) == pytest.approx(2.1)
    assert patience(sglang, 1 << 20) == 30.0


def test_policies() -> None:
    clock = ManualClock()

    def vote(policy: str) -> StopVote:
        return StopVote(HiCacheConfig(hicache_storage_prefetch_policy=policy), clock)  # type: ignore[arg-type]

    assert vote("best_effort").wants_to_stop(10)
    patient, waits = vote("wait_complete"), vote("timeout")
    assert not patient.wants_to_stop(1024)
    assert not waits.wants_to_stop(1024)
    clock.advance(1.25)
    assert waits.wants_to_stop(1024)
    clock.advance(10_000)
    assert not patient.wants_to_stop(1024)
