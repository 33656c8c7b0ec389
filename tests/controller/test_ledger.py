from hicache_core.controller.ledger import TokenLedger
from hicache_core.controller.reasons import Reason, Tier, store_reason


def test_found_is_used_plus_lost_plus_open() -> None:
    ledger = TokenLedger()
    account = ledger.open()
    account.found(Tier.STORAGE, 10)
    assert ledger.balanced()
    account.used(Tier.STORAGE, 6)
    account.lost(Tier.STORAGE, Reason.CORRUPT, 3)
    ledger.admitted(20, 14)
    assert ledger.tiers[Tier.STORAGE].open == 1
    account.close(Reason.ABORTED)
    assert ledger.tiers[Tier.STORAGE].open == 0
    assert ledger.tiers[Tier.STORAGE].lost == {Reason.CORRUPT: 3, Reason.ABORTED: 1}
    assert ledger.balanced()
    assert ledger.as_dict()["balanced"] is True


def test_a_path_that_forgets_to_book_is_seen() -> None:
    ledger = TokenLedger()
    ledger.tiers[Tier.HOST].found += 4
    assert not ledger.balanced()
    assert "host" in ledger.problems()[0]


def test_used_beyond_found_is_seen() -> None:
    ledger = TokenLedger()
    account = ledger.open()
    account.used(Tier.DEVICE, 4)
    ledger.admitted(4, 0)
    assert any("negative" in problem for problem in ledger.problems())


def test_used_and_recomputed_make_the_prompt() -> None:
    ledger = TokenLedger()
    account = ledger.open()
    account.found(Tier.DEVICE, 4)
    account.used(Tier.DEVICE, 4)
    ledger.admitted(10, 5)
    assert any("prompt tokens" in problem for problem in ledger.problems())


def test_retract_moves_used_to_lost() -> None:
    ledger = TokenLedger()
    account = ledger.open()
    account.found(Tier.HOST, 8)
    account.used(Tier.HOST, 8)
    account.retract(Tier.HOST, Reason.LOAD_FAILED, 8)
    ledger.admitted(8, 8)
    assert ledger.tiers[Tier.HOST].used == 0
    assert ledger.tiers[Tier.HOST].lost[Reason.LOAD_FAILED] == 8
    assert ledger.balanced()


def test_a_store_answer_that_no_one_knows_is_unavailable() -> None:
    assert store_reason("miss") is Reason.MISS
    assert store_reason("strange") is Reason.UNAVAILABLE
