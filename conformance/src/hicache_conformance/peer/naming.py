"""Names: what is one store's, one model's, one rank's, stays so."""

from __future__ import annotations

import contextlib
import inspect
import os
from pathlib import Path

from hicache_conformance.peer.casebook import peer_case
from hicache_conformance.peer.harness import PeerHarness, told
from hicache_conformance.verdict import CaseFailed, NotApplicable, check
from hicache_core.adapters.sglang_backend.loading import storage_module
from hicache_core.adapters.sglang_backend.store import PeerStore
from hicache_core.types import Outcome


def _files_beside(h: PeerHarness) -> set[Path]:
    return {p for p in h.directory.rglob("*") if p.is_file() and h.root not in p.parents}


@peer_case("keys", "a key that leaves the root")
def no_key_leaves_the_root(h: PeerHarness) -> None:
    """Keys with "../" and absolute ones are set: no file appears outside the store's directory."""
    store = h.open()
    h.store(store, [h.key()])
    h.place_of(h.page(h.key()))
    before = _files_beside(h)
    keys = [
        f"../{h.key(1)}",
        f"{h.directory}/{h.key(2)}",
        f"x/../../{h.key(3)}",
        f"../../{h.directory.name}/{h.key(4)}",
    ]
    escaped = []
    for key in keys:
        # A refusal in any form is well; what is raised once the file is there is no refusal.
        with contextlib.suppress(Exception):
            store.set([key], [h.page(key)])
        made = _files_beside(h) - before
        before |= made
        escaped += [(key.replace(h.key(1), "x"), os.path.relpath(path, h.root)) for path in made]
    if escaped:
        key, path = escaped[0]
        raise CaseFailed(f"{len(escaped)} of {len(keys)} keys made a file outside the root: {key!r} wrote {path!r}")


@peer_case("keys", "a clear that is too wide")
def clear_takes_only_its_own_keys(h: PeerHarness) -> None:
    """Two models share a store, and a file of someone else lies in its directory; one model is cleared."""
    one, two = h.open("model-one"), h.open("model-two")
    if inspect.getattr_static(one.cls, "clear") is inspect.getattr_static(storage_module().HiCacheStorage, "clear"):
        raise NotApplicable("clear() is the base class's, which does nothing")
    h.store(one, [h.key(1)])
    h.store(two, [h.key(2)])
    notes = h.root / "notes.txt"
    notes.write_text("not a page\n")
    one.clear()
    gone = []
    if two.exists([h.key(2)]) != 1:
        gone.append("the pages of another model")
    if h.kit.keeps_files and not notes.exists():
        gone.append("a file that is no page")
    check(not gone, f"clear() of one model removed {' and '.join(gone)}")


def _shared(h: PeerHarness, one: PeerStore, other: PeerStore, what: str) -> None:
    """Fail where a page that `one` stored is a page of `other`."""
    key = h.key(7)
    h.store(one, [key])
    seen = other.exists([key])
    answer, found = h.read(other, key)
    if not seen and answer is not Outcome.HIT:
        return
    same = answer is Outcome.HIT and found == h.page(key)
    ending = "its bytes are handed out" if same else f"get answers {told(answer)}"
    raise CaseFailed(f"{what} share keys: what one stored exists for the other, and {ending}")


@peer_case("keys", 'the shared suffix of "a/b" and "a-b"')
def model_names_share_no_key(h: PeerHarness) -> None:
    """A page is stored for the model "a/b" and looked for by the model "a-b"."""
    _shared(h, h.open("a/b"), h.open("a-b"), 'the models "a/b" and "a-b"')


@peer_case("keys", "the size of the tensor-parallel group is not in the key")
def tensor_parallel_sizes_share_no_key(h: PeerHarness) -> None:
    """Rank 0 of one and rank 0 of two hold different heads of a page; the one stores, the other looks."""
    _shared(h, h.open(tp_size=1), h.open(tp_size=2), "rank 0 of 1 and rank 0 of 2")


@peer_case("keys", "the pipeline stage is not in the key")
def pipeline_stages_share_no_key(h: PeerHarness) -> None:
    """Two pipeline stages hold different layers of a page; the one stores, the other looks."""
    _shared(h, h.open(pp_size=2, pp_rank=0), h.open(pp_size=2, pp_rank=1), "pipeline stages 0 and 1 of 2")


@peer_case("keys", "the model is not in the key")
def two_models_share_no_key(h: PeerHarness) -> None:
    """A page is stored for one model and looked for by another with nothing in common in its name."""
    _shared(h, h.open("alpha"), h.open("beta"), "two models")


@peer_case("keys", "eviction takes another model's pages")
def eviction_takes_only_its_own_pages(h: PeerHarness) -> None:
    """The store is bounded; the model "llama" fills it, and the pages of "my_llama" beside it stay."""
    if h.kit.capped is None:
        raise NotApplicable("no bound on the store's size is known for this class")
    other = h.open("my_llama")
    h.store(other, [h.key(100)])
    mine = h.open("llama", more=h.kit.capped)
    for n in range(40):
        mine.set([h.key(n)], [h.page(h.key(n))])
    check(other.exists([h.key(100)]) == 1, 'filling the bounded store of "llama" removed the page of "my_llama"')
