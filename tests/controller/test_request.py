from array import array

import numpy as np
import pytest

from hicache_core.controller.ledger import TokenLedger
from hicache_core.controller.request import Request
from hicache_core.errors import MisuseError
from hicache_core.keys import chain_seed, page_hashes


def request(tokens: object, **how: object) -> Request:
    return Request("r", tokens, page_size=4, account=TokenLedger().open(), **how)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [list, np.array, lambda ids: array("q", ids), lambda ids: np.array(ids, np.uint32)])
def test_tokens_of_any_kind(kind: object) -> None:
    made = request(kind(list(range(10))))  # type: ignore[operator]
    assert made.tokens.dtype == np.uint32
    assert made.tokens.tolist() == list(range(10))
    assert (len(made), made.pages) == (10, 2)


@pytest.mark.parametrize("bad", [[-1], [2**32], [1, 2**40]])
def test_ids_that_cannot_be_are_refused(bad: list[int]) -> None:
    with pytest.raises(ValueError, match="token"):
        request(bad)


def test_extending_changes_key_and_keeps_hashes() -> None:
    made = request(range(8), cache_salt="s")
    before = made.hashes(2)
    made.extend(range(8, 13))
    assert made.hashes(3)[:2] == before
    assert made.hashes(3) == page_hashes(np.arange(12, dtype=np.uint32), 4, prior=chain_seed(None, "s"))
    assert made.key().data == np.arange(12, dtype="<u4").tobytes()
    assert made.key(1).data == np.arange(4, dtype="<u4").tobytes()
    assert made.key().namespace == (None, "s")
    assert made.known_hashes(1, 3) == made.hashes(3)[1:]
    assert made.known_hashes(1, 4) is None


@pytest.mark.parametrize(("limit", "pages"), [(None, 2), (8, 2), (7, 1), (3, 0), (0, 0), (-1, 0), (100, 2)])
def test_the_reuse_limit_is_in_whole_pages(limit: int | None, pages: int) -> None:
    assert request(range(10), reuse_limit=limit).reusable_pages == pages


def test_pages_before_admission_are_refused() -> None:
    with pytest.raises(MisuseError, match="before it is admitted"):
        request(range(8)).add_slots(np.array([1]))


def test_an_empty_request() -> None:
    made = request([])
    assert (len(made), made.pages, made.key().data, made.hashes(0)) == (0, 0, b"", [])
