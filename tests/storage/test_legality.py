"""The quick rules for keys say what the full one says."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hicache_core.storage.legality import legal_key, legal_namespace, legal_positions
from hicache_core.types import KEY_PATTERN

OURS = f"{'0' * 32}/{'a' * 64}.kv.l0-2h0-8"
KEYS = st.one_of(st.text("ab./-_Z \n", max_size=8), st.just(OURS), st.text(max_size=4))


@given(st.lists(KEYS, max_size=6))
@example([OURS, f"{OURS}\n", OURS.upper(), ""])
@example(["a/b", "a/..", "a/.b", "./a", "a\nb/c"])
@example([f"{'a' * 64}/{'b' * 131}", f"{'a' * 100}/{'b' * 100}"])
def test_the_quick_rules_are_the_full_rule(keys: list[str]) -> None:
    allowed = [KEY_PATTERN.fullmatch(key) is not None for key in keys]
    assert [legal_key(key) for key in keys] == allowed
    assert legal_positions(keys) == [i for i, legal in enumerate(allowed) if legal]


@pytest.mark.parametrize(
    ("name", "legal"),
    [("a.b-c_0", True), (OURS[:32], True), *((name, False) for name in ("a/b", "..", "", "A", "+hicache", "a*"))],
)
def test_a_namespace_is_one_segment(name: str, legal: bool) -> None:
    assert legal_namespace(name) is legal
