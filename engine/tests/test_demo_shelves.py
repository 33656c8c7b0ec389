"""The demo's places on every store that is installed: its way in finds, counts and damages what a session stored."""

from __future__ import annotations

import pytest
from hicache_engine.demo_store import BACK_DOORS, make_shelf

from hicache_core.errors import HiCacheError
from hicache_core.namespace import Identity
from hicache_core.plugin.extensions import registered
from hicache_core.storage import open_session
from hicache_core.types import Outcome

IDENTITY = Identity("model", "declared:w", "bfloat16", 16, "mha", 1, 1, 8)
HASHES = [f"{number:064x}" for number in range(3)]
FAKES = ("dynamic", "eic", "fault", "hf3fs-usrbio", "memory", "simm")
"""Not for the demo: without a process of their own, or wrappers."""


@pytest.fixture(params=sorted(set(registered(BACK_DOORS)) - set(FAKES)))
def shelf(request, tmp_path):
    try:
        made = make_shelf(tmp_path, request.param, {})
    except HiCacheError as error:
        pytest.skip(f"{request.param}: {error}")
    yield made
    made.close()


def test_pages_are_counted_and_one_is_damaged(shelf):
    place = shelf.main
    assert (shelf.pages(place), shelf.begun(place)) == (0, False)
    whole = [[memoryview(bytes([number]) * 4096)] for number in range(3)]
    mine = IDENTITY.replace(tenant=place.tenant)
    with open_session(place.backend, identity=mine, options=place.options, strict_options=False) as session:
        assert session.set(HASHES, whole) == [Outcome.STORED] * 3
        keys = session.identity.key_schema().physical(HASHES)
    assert (shelf.pages(place), shelf.begun(place)) == (3, True)
    damaged, name = shelf.damaged(keys[1])
    assert HASHES[1] in name
    with open_session(damaged.backend, identity=mine, options=damaged.options, strict_options=False) as session:
        room = [[memoryview(bytearray(4096))] for _ in HASHES]
        assert session.get(HASHES, room) == [Outcome.HIT, Outcome.CORRUPT, Outcome.HIT]
    assert shelf.pages(shelf.fresh("other")) == 0
