"""The cases that put a proxy under the core judge the core: with a part of it broken, they must fail too."""

import numpy as np
import pytest
from hicache_conformance import Target, run_case
from hicache_conformance.casebook import find_case

from hicache_core.seal import Sealer
from hicache_core.storage import breaker, damage
from hicache_core.storage.handles import Call
from hicache_core.types import Outcome


def trust_every_seal(self, keys, pages, prepared=None):
    return [Outcome.HIT] * len(keys)


def foreign_is_corrupt(self, keys, pages, prepared=None, *, real=Sealer.check_batch):
    return [Outcome.CORRUPT if o is Outcome.FOREIGN else o for o in real(self, keys, pages, prepared)]


def never_give_up(self):
    return False


BREAKAGES = {
    "a_flipped_bit_is_a_miss_and_heals": (Sealer, "check_batch", trust_every_seal),
    "zeros_in_place_of_a_page_are_a_miss_and_heal": (Sealer, "check_batch", trust_every_seal),
    "a_foreign_page_is_a_miss_and_stays": (Sealer, "check_batch", foreign_is_corrupt),
    "a_reader_with_bad_memory_does_not_empty_the_store": (damage.Damage, "may_heal", lambda self: True),
    "a_stalled_read_ends_at_its_deadline": (Call, "give_up", never_give_up),
    "a_store_that_keeps_stalling_is_left_alone_for_a_while": (breaker.Breaker, "_open", lambda *_: None),
    "plaintext_never_reaches_the_store": (np, "bitwise_xor", lambda a, b, out=None: a),
}


@pytest.mark.parametrize("case", BREAKAGES)
def test_a_broken_core_is_caught(case, monkeypatch):
    monkeypatch.setattr(*BREAKAGES[case])
    result = run_case(find_case(case), Target("memory", patience=0.4))
    assert result.outcome == "fail", result.reason
