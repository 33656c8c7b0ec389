"""Every key has a place of its own, and none leads out of the prefix."""

import pytest
from hicache_s3.names import CONTROL, key_of, name_of

NS = "0123456789abcdef" * 2
KEYS = [
    f"{NS}/{'a' * 64}.kv.l0-30h0-3",
    NS,
    f"{NS}/a",
    f"{NS}/a/b",
    f"{NS}/a/b/c",
    f"{NS}/..a",
    f"{NS}/...",
    f"{NS}/.a/b.",
    f"{NS}/a-b_c.d",
    "a",
    "a/b",
]


def test_names_and_keys_are_one_to_one():
    names = [name_of(key) for key in KEYS]
    assert len(set(names)) == len(KEYS)
    assert [key_of(name) for name in names] == KEYS


def test_a_name_has_two_segments_so_no_object_lies_below_another():
    assert all(name_of(key).count("/") == 1 for key in KEYS)


def test_keys_of_the_core_are_names_as_they_stand():
    assert name_of(KEYS[0]) == KEYS[0]


@pytest.mark.parametrize("key", ["", "/", "..", "a/..", "a//b", "a/", "/a", "A", "a b", "a+b", "a\n", "é", "a" * 201])
def test_what_is_no_key_has_no_name(key):
    assert name_of(key) is None


@pytest.mark.parametrize("name", ["a", "a/b/c", "a/B", "+/a", "a/b++c", "a/+b", f"{CONTROL}/first-writer", "", "a/"])
def test_what_is_no_page_has_no_key(name):
    assert key_of(name) is None
