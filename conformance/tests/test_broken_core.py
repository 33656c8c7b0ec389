"""The cases that put a proxy under the core judge the core: with a part of it broken, they must fail too."""

import numpy as np
import pytest
from hicache_conformance import Target, run_case
from hicache_conformance.casebook import find_case

from hicache_core.namespace import Identity
from hicache_core.seal import Sealer
from hicache_core.storage import breaker, damage, workers
from hicache_core.storage.admin import Administration
from hicache_core.storage.handles import Call
from hicache_core.storage.queries import Query
from hicache_core.storage.reading import Reader
from hicache_core.types import Outcome


def trust_every_seal(self, prepared, page):
    return Outcome.HIT


def foreign_is_corrupt(self, prepared, page, *, real=Sealer.check_page):
    outcome = real(self, prepared, page)
    return Outcome.CORRUPT if outcome is Outcome.FOREIGN else outcome


def never_give_up(self):
    return False


def blocked_once_open(self, *, real=breaker.Breaker.admit):
    return breaker.Admission.BLOCKED if self._failures else real(self)


def take_the_first_answer(self, call, batch, torn, first, room, ctx):
    return first


def joined_without_lengths(self):
    return "".join(str(getattr(self, name)) for name in ("model", "tenant", "weights", "dtype")).encode()


def tell_all(self, found, keys, transfers):
    return found


def closes_only(self, calm, errors, deadline):
    self._parts.guard.dispatch.call("close")
    return True


BREAKAGES = {
    "a_flipped_bit_is_a_miss_and_heals": (Sealer, "check_page", trust_every_seal),
    "zeros_in_place_of_a_page_are_a_miss_and_heal": (Sealer, "check_page", trust_every_seal),
    "a_foreign_page_is_a_miss_and_stays": (Sealer, "check_page", foreign_is_corrupt),
    "a_reader_with_bad_memory_does_not_empty_the_store": (damage.Damage, "may_heal", lambda self: True),
    "a_stalled_read_ends_at_its_deadline": (Call, "give_up", never_give_up),
    "a_store_that_keeps_stalling_is_left_alone_for_a_while": (breaker.Breaker, "_open", lambda *_: None),
    "plaintext_never_reaches_the_store": (np, "bitwise_xor", lambda a, b, out=None: a),
    "plaintext_does_not_lie_in_the_store": (np, "bitwise_xor", lambda a, b, out=None: a),
    "a_stalled_exists_is_no_hit": (Call, "give_up", never_give_up),
    "a_stalled_write_ends_at_its_deadline": (Call, "give_up", never_give_up),
    "closing_does_not_wait_for_a_stalled_call": (workers.WorkerGroup, "running", 0),
    "a_store_that_hangs_up_costs_misses": (breaker.Breaker, "admit", blocked_once_open),
    "a_read_error_that_passes_is_no_damage": (Reader, "_read_again", take_the_first_answer),
    "identities_that_read_alike_are_apart": (Identity, "encoded", joined_without_lengths),
    "damage_is_seen_on_every_path": (Sealer, "check_page", trust_every_seal),
    "no_prefix_needs_a_damaged_page": (Query, "_without_damaged", tell_all),
    "what_is_lent_is_taken_back": (Administration, "_closing_call", closes_only),
}


@pytest.mark.parametrize("case", BREAKAGES)
def test_a_broken_core_is_caught(case, monkeypatch):
    monkeypatch.setattr(*BREAKAGES[case])
    result = run_case(find_case(case), Target("memory", patience=0.4))
    assert result.outcome == "fail", result.reason
