"""The case of keys that leave the root, on stores made for it. Needs no SGLang."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hicache_conformance.peer.casebook import peer_cases
from hicache_conformance.peer.harness import PeerHarness
from hicache_conformance.peer.judge import run_peer_case
from hicache_conformance.peer.kit import PeerKit
from hicache_conformance.report import CaseResult

from hicache_core.types import Outcome


class Store:
    """Takes a key for a file name as it stands, below the root or not."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def set(self, keys: Sequence[str], pages: Sequence[bytes]) -> list[Outcome]:
        """Write each page."""
        for key, page in zip(keys, pages, strict=True):
            self.write(self.root / key, page)
        return [Outcome.STORED] * len(keys)

    def write(self, path: Path, page: bytes) -> None:
        """One page, in whatever directory that is."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(page)

    def inside(self, path: Path) -> bool:
        """Whether the path is below the root."""
        return self.root in path.resolve().parents

    def close(self) -> None:
        """Nothing is open."""


class Careful(Store):
    """Refuses the key before it writes."""

    def write(self, path: Path, page: bytes) -> None:
        """Or raises."""
        if not self.inside(path):
            raise ValueError("the key leaves the root")
        super().write(path, page)


class Late(Store):
    """Writes, then sees where, and refuses: the file is there all the same."""

    def write(self, path: Path, page: bytes) -> None:
        """And raises."""
        super().write(path, page)
        if not self.inside(path):
            raise ValueError("the key has left the root")


def verdict(made: type[Store], monkeypatch: pytest.MonkeyPatch) -> CaseResult:
    """What the judge says of it."""
    monkeypatch.setattr(PeerHarness, "open", lambda harness: made(harness.root.resolve()))
    [case] = [case for case in peer_cases() if case.id == "no_key_leaves_the_root"]
    return run_peer_case(case, PeerKit("made", "made:Store"))


def test_a_refusal_before_anything_is_written_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is raised."""
    assert verdict(Careful, monkeypatch).outcome == "pass"


@pytest.mark.parametrize("made", [Store, Late])
def test_a_file_outside_is_found_whether_or_not_the_store_then_raises(
    made: type[Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What counts is the file that is there afterwards."""
    found = verdict(made, monkeypatch)
    assert found.outcome == "fail", found.reason
    assert found.reason.startswith("4 of 4 keys made a file outside the root: '../x' wrote '../")
