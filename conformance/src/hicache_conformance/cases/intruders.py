"""A root directory that others write to: nothing leaves it, nothing foreign in it is harmed, nothing in it hangs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from hicache_conformance.backdoor import BackDoor
from hicache_conformance.casebook import case
from hicache_conformance.harness import Harness
from hicache_conformance.material import LEGAL_ODD_TAILS, illegal_keys
from hicache_conformance.processes import Agent
from hicache_conformance.sessioning import Opened, session_on
from hicache_conformance.verdict import NotApplicable, Skipped, check, check_equal
from hicache_core.types import Outcome

_VICTIM = b"this file lies outside the store and belongs to someone else\n"


def _tree(top: Path) -> dict[str, bytes]:
    """Every file under top, with its bytes; links are not followed."""
    found = {}
    for directory, _, names in os.walk(top):
        for name in names:
            path = Path(directory, name)
            if path.is_symlink() or path.is_file():
                found[str(path)] = os.readlink(path).encode() if path.is_symlink() else path.read_bytes()
    return found


def _page_file(root: Path, data: bytes) -> Path:
    """The file that holds exactly these bytes. Skipped where the store keeps pages in another way."""
    for path in root.rglob("*"):
        if (
            path.is_file()
            and not path.is_symlink()
            and path.stat().st_size == len(data)
            and path.read_bytes() == data
        ):
            return path
    raise Skipped("no file under root holds a page's bytes and nothing else: the case cannot plant anything there")


def _has_page_files(door: BackDoor) -> bool:
    return bool(getattr(door, "page_files", True))


def _file_of(s: Opened, door: BackDoor, root: Path, page_hash: str) -> Path:
    if not _has_page_files(door):
        raise NotApplicable("the back door says that pages are no files of their own")
    data = door.raw_get(s.physical([page_hash])[0])
    check(data is not None, "raw_get does not find a page that was stored")
    return _page_file(root, data or b"")


@case("hostile", "keys", rounds=1)
def no_key_leads_out_of_the_root(h: Harness) -> None:
    """Whatever key is tried, every file that appears lies under the root, and nothing beside it changes."""
    store = h.open()
    root = h.root(h.back_door(store.backend)).resolve()
    beside = root.parent / f"outside-{h.namespace(7)}"
    beside.mkdir()
    h.at_end(lambda: shutil.rmtree(beside, ignore_errors=True))
    (beside / "victim").write_bytes(_VICTIM)
    keys = [*illegal_keys(h.namespace()), f"../{beside.name}/new", f"{h.namespace()}/../../{beside.name}/victim"]
    keys += [f"{beside}/new", f"{h.namespace()}/{'../' * 12}tmp/{beside.name}"]
    before = _tree(root)
    for key in keys:
        store.set([key], [h.lend(h.key())])
        store.get([key], [h.blank()])
        store.delete([key])
    check_equal(_tree(root).keys() - before.keys(), set(), "files that illegal keys made under the root")
    h.store(store, [f"{h.namespace()}/{tail}" for tail in LEGAL_ODD_TAILS])
    for namespace in (f"../{beside.name}", str(beside), f"{h.namespace()}/../../{beside.name}"):
        store.refused("clear", namespace=namespace)
    check_equal(_tree(beside), {str(beside / "victim"): _VICTIM}, "files beside the root")
    for place in (root.parent, Path("/tmp"), Path.cwd(), Path("/")):
        made = [name for name in os.listdir(place) if h.namespace() in name or h.namespace(7) in name]
        check(set(made) <= {beside.name}, f"keys made {made} in {place}")


@case("hostile", "keys")
def a_link_in_place_of_a_page_harms_nothing_outside(h: Harness) -> None:
    """A page's file is replaced by a link to one outside: set, replace, delete and clear leave that as it is."""
    s = session_on(h)
    door = s.door()
    root = h.root(door)
    hashes = s.hashes(6)
    s.put(hashes)
    outside = h.directory / f"outside-{h.namespace()}"
    outside.mkdir()
    for page_hash in hashes[:4]:
        path = _file_of(s, door, root, page_hash)
        victim = outside / page_hash[:16]
        victim.write_bytes(_VICTIM * 100)
        path.unlink()
        path.symlink_to(victim)
    dangling = _file_of(s, door, root, hashes[4])
    dangling.unlink()
    dangling.symlink_to(outside / "not-there")
    before = _tree(outside)
    outcomes, _ = s.read(hashes)
    check(not any(outcomes[:5]), f"a link to a file outside is read as a page: {[o.name for o in outcomes]}")
    check_equal(outcomes[5], Outcome.HIT, "the page beside them")
    s.put(hashes, version=1)
    s.session.exists(hashes)
    s.session.set(hashes[:3], [s.page(x).buffers for x in hashes[:3]], replace=True)
    if h.capabilities.delete != "none":
        s.session.delete(hashes[:2])
    store = h.open()
    store.clear(s.session.namespace)
    check_equal(_tree(outside), before, "files outside the root after set, replace, delete and clear")


@case("hostile", "keys")
def a_linked_directory_is_not_followed_out(h: Harness) -> None:
    """A directory of the store is replaced by a link to one outside: nothing is written, listed or removed there."""
    s = session_on(h)
    door = s.door()
    root = h.root(door)
    hashes = s.hashes(3)
    s.put(hashes)
    top = root / _file_of(s, door, root, hashes[0]).relative_to(root).parts[0]
    if not top.is_dir():
        raise NotApplicable("pages lie in the root itself: there is no directory that a link could replace")
    s.session.close()
    outside = h.directory / f"outside-{h.namespace()}"
    shutil.move(str(top), str(outside))
    (outside / "notes.txt").write_bytes(_VICTIM)
    top.symlink_to(outside, target_is_directory=True)
    h.at_end(lambda: top.unlink(missing_ok=True) if top.is_symlink() else None)
    before = _tree(outside)
    again = session_on(h)
    again.put(again.hashes(20, start=100))
    again.put(hashes, version=1)
    again.read(hashes)
    store = h.open()
    store.refused("clear", namespace=again.session.namespace)
    check_equal(_tree(outside), before, "files outside the root, behind a linked directory")
    top.unlink()


@case("hostile", "keys")
def foreign_files_are_left_alone(h: Harness) -> None:
    """Files that are not the store's, in every directory of it, survive set, delete, clear and a reopen, unlisted."""
    s = session_on(h)
    door = s.door()
    root = h.root(door)
    hashes = s.hashes(8)
    s.put(hashes)
    places = {root, *(_file_of(s, door, root, page_hash).parent for page_hash in hashes[:4])}
    places |= {parent for place in tuple(places) for parent in place.parents if root in parent.parents}
    foreign = {}
    for place in places:
        for name in ("My Notes.TXT", "Thumbs.db", "~lock", "core.1234 (copy)"):
            path = place / name
            path.write_bytes(_VICTIM)
            foreign[path] = _VICTIM
    s.expect_hits(hashes)
    s.put(s.hashes(20, start=100))
    store = h.open()
    listed = store.scan(None)
    check(
        listed is None or not any("notes" in key.lower() or "thumbs" in key.lower() for key, *_ in listed),
        "scan lists a foreign file",
    )
    if h.capabilities.delete != "none":
        s.session.delete(hashes[:2])
    store.clear(s.session.namespace)
    store.close()
    s.session.close()
    h.open().close()
    gone = [str(path.relative_to(root)) for path, data in foreign.items() if not _holds(path, data)]
    check(not gone, f"foreign files were removed or changed: {gone}")
    for path in foreign:
        path.unlink()


def _holds(path: Path, data: bytes) -> bool:
    return path.is_file() and path.read_bytes() == data


@case("hostile", "a failing store costs recomputation")
def a_directory_in_place_of_a_page_is_no_page(h: Harness) -> None:
    """Where a page's file should be stands a directory: no HIT, no exception to the caller, neighbours are right."""
    s = session_on(h)
    door = s.door()
    root = h.root(door)
    hashes = s.hashes(5)
    s.put(hashes)
    path = _file_of(s, door, root, hashes[2])
    path.unlink()
    path.mkdir()
    (path / "Inside.TXT").write_bytes(_VICTIM)
    outcomes, _ = s.read(hashes)
    check(not outcomes[2], f"a directory is read as a page: {outcomes[2].name}")
    check_equal(outcomes[:2] + outcomes[3:], [Outcome.HIT] * 4, "the pages beside it")
    s.put(hashes)
    s.session.exists(hashes)
    check((path / "Inside.TXT").read_bytes() == _VICTIM, "a file in the planted directory was changed")
    s.expect_hits([*hashes[:2], *hashes[3:]])
    shutil.rmtree(path)


@case("hostile", "a failing store costs recomputation", rounds=1)
def a_pipe_in_place_of_a_page_does_not_hang(h: Harness) -> None:
    """Where a page's file should be stands a named pipe: the call comes back, without a HIT; neighbours are right."""
    s = session_on(h)
    door = s.door()
    root = h.root(door)
    hashes = s.hashes(5)
    s.put(hashes)
    path = _file_of(s, door, root, hashes[2])
    path.unlink()
    os.mkfifo(path)
    h.at_end(lambda: path.unlink(missing_ok=True))
    outcomes, _ = s.read(hashes)
    check(outcomes[2] is not Outcome.TIMEOUT, "reading a named pipe hangs")
    check(not outcomes[2], f"a named pipe is read as a page: {outcomes[2].name}")
    check_equal(outcomes[:2] + outcomes[3:], [Outcome.HIT] * 4, "the pages beside it")
    written = s.put(hashes)
    check(Outcome.TIMEOUT not in written, "writing where a named pipe stands hangs")
    s.expect_hits([*hashes[:2], *hashes[3:]])


@case("hostile", "atomic publication, a failing store costs recomputation: full disk", rounds=1)
def a_full_disk_leaves_no_trace(h: Harness) -> None:
    """Writes that fail half way for want of room (a limit on file sizes): no success, no page, nothing left over.

    Smaller pages still go in, and there is room again the refused ones are stored.
    """
    store = h.open()
    door = h.back_door(store.backend)
    root = h.root(door)
    large, small = h.shape(4, 128 << 10), h.shape(1, 4 << 10)
    keys, fits = h.keys(6), h.keys(3, start=50)
    h.store(store, [h.key(99)], shape=small)
    before = {path for path in root.rglob("*") if path.is_file()}
    agent = Agent(h)
    agent.order("set", keys, large, batch=3, file_size_limit=200 << 10)
    refused = [event for event in agent.rest() if event["event"] == "done"]
    answers = {outcome for event in refused for outcome in event["outcomes"]}
    check(answers and not answers & {"stored", "exists"}, f"set without room answered {sorted(answers)}")
    agent.order("set", fits, small, file_size_limit=200 << 10)
    done = [event["outcomes"] for event in agent.rest() if event["event"] == "done"]
    check_equal(done, [["stored"] * 3], "set of small pages where large ones do not fit")
    h.expect_gone(store, keys, shape=large)
    h.expect_hits(store, fits, shape=small)
    store.close()
    h.open().close()
    left = {path for path in root.rglob("*") if path.is_file() and path.stat().st_size > 4 << 10} - before
    pages = {_page_file(root, door.raw_get(key) or b"") for key in fits} if _has_page_files(door) else set()
    check(not left - pages, f"a refused write left {sorted(str(p.relative_to(root)) for p in left - pages)[:3]}")
    again = h.open()
    h.store(again, keys, shape=large)
    h.expect_hits(again, keys, shape=large)
