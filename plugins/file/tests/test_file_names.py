"""Keys and file names translate into each other, and no two keys share a file."""

import re

from hicache_file import names
from hypothesis import given
from hypothesis import strategies as st

from hicache_core.types import KEY_PATTERN

SEGMENT = st.text("abz019._-", min_size=1, max_size=8).filter(lambda s: s not in (".", ".."))
KEY = st.lists(SEGMENT, min_size=1, max_size=4).map("/".join)


@given(KEY)
def test_every_legal_key_has_a_file_that_says_which_key_it_is(key):
    assert names.legal_key(key)
    namespace, leaf, name = names.locate(key)
    assert names.key_of(namespace, names.LEAVES[leaf], name) == key
    assert "/" not in name
    assert names.relative_path(key).count("/") == 2


@given(KEY, KEY)
def test_two_keys_never_share_a_file(one, two):
    assert (one == two) == (names.relative_path(one) == names.relative_path(two))


@given(st.text(max_size=12) | st.from_regex(re.compile(r"[0-9a-z._/+-]{1,12}"), fullmatch=True))
def test_legality_is_the_contracts(key):
    assert names.legal_key(key) == (KEY_PATTERN.fullmatch(key) is not None)


@given(st.text(max_size=12), st.sampled_from([*names.LEAVES, "x", "", "100"]), st.text(max_size=12))
def test_foreign_files_have_no_key_or_one_that_leads_back_to_them(namespace, leaf, name):
    key = names.key_of(namespace, leaf, name)
    assert key is None or names.relative_path(key) == f"{namespace}/{leaf}/{name}"


def test_the_longest_key_has_a_name_that_fits():
    key = "a/" + "b" * 198
    assert names.legal_key(key)
    assert len(names.locate(key)[2]) <= 255
    assert not names.legal_key(key + "b")


def test_the_control_directory_cannot_be_a_namespace():
    assert not names.legal_namespace(names.CONTROL)
    assert names.legal_namespace(".hidden")
    assert not names.legal_namespace("..")
