"""`hicache store` and `hicache explain` on a real directory with real pages, some of them damaged."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hicache_core.keys import page_hashes
from hicache_core.namespace import Identity
from hicache_core.storage.opening import open_session
from hicache_core.storage.settings import SessionSettings

pytest.importorskip("hicache_file", reason="the file backend is another distribution: pip install hicache-file")

PAGE = 4
TOKENS = np.arange(5 * PAGE, dtype=np.uint32)
IDENTITY = Identity("m", "declared:w1", "float16", PAGE, "mha", 2, 2, 8)


def put(root: Path, identity: Identity = IDENTITY) -> list[str]:
    """Five pages of 256 bytes; their hashes."""
    hashes = page_hashes(TOKENS, PAGE)
    pages = [[memoryview(bytearray([number]) * 256)] for number in range(len(hashes))]
    with open_session("file", identity=identity, options={"root": str(root)}) as session:
        assert all(session.set(hashes, pages))
    return hashes


def stored_file(root: Path, page_hash: str) -> Path:
    found = [path for path in root.rglob("*") if path.is_file() and page_hash in path.name]
    assert len(found) == 1, found
    return found[0]


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def test_ls_stat_du_count_what_is_there(hicache, tmp_path):
    root = tmp_path / "kv"
    put(root)
    put(root, IDENTITY.replace(tenant="b"))
    options = ("--backend", "file", "-o", f"root={root}", "--json")
    listed = hicache("store", "ls", *options).json
    assert len(listed) == 10
    assert {entry["nbytes"] for entry in listed} == {256 + 64}
    stat = hicache("store", "stat", *options).json
    assert {row["pages"] for row in stat["namespaces"].values()} == {5}
    used = hicache("store", "du", *options).json
    assert used["total_bytes"] == 10 * 320
    assert {row["pool"] for row in used["rows"]} == {"kv"}
    one = hicache("store", "ls", *options, "--namespace", IDENTITY.namespace()).json
    assert len(one) == 5


def test_ls_gives_one_line_to_each_object_however_narrow_the_terminal(hicache, tmp_path):
    root = tmp_path / "kv"
    hashes = put(root)
    listed = hicache("store", "ls", "--backend", "file", "-o", f"root={root}", env={"COLUMNS": "40"}).out
    lines = listed.splitlines()
    assert len(lines) == len(hashes)
    assert all(any(page_hash in line for line in lines) for page_hash in hashes)


def test_ls_says_that_nothing_is_there_beside_the_listing(hicache, tmp_path):
    options = ("--backend", "file", "-o", f"root={tmp_path}/kv")
    put(tmp_path / "kv")
    absent = hicache("store", "ls", *options, "--namespace", "0" * 32)
    assert (absent.code, absent.out) == (0, "")
    assert f"no pages are stored under the namespace '{'0' * 32}'" in absent.err
    assert hicache("store", "ls", *options).err == ""
    hicache("store", "gc", *options, "--namespace", IDENTITY.namespace())
    empty = hicache("store", "ls", *options)
    assert (empty.code, empty.out, empty.err.strip()) == (0, "", "no pages are stored in this store")
    assert hicache("store", "ls", *options, "--json").json == []


def test_verify_names_the_damaged_page_and_fails(hicache, tmp_path):
    root = tmp_path / "kv"
    hashes = put(root)
    options = ("--backend", "file", "-o", f"root={root}", "--json")
    assert hicache("store", "verify", *options).json["clean"] is True
    flip(stored_file(root, hashes[2]), 200)
    done = hicache("store", "verify", *options)
    assert done.code == 1
    assert done.json["intact"] == 4
    assert [hashes[2] in bad["key"] for bad in done.json["bad"]] == [True]


def test_verify_sees_a_page_under_another_key(hicache, tmp_path):
    root = tmp_path / "kv"
    hashes = put(root)
    stored_file(root, hashes[0]).write_bytes(stored_file(root, hashes[1]).read_bytes())
    done = hicache("store", "verify", "--backend", "file", "-o", f"root={root}", "--json")
    assert (done.code, done.json["foreign"]) == (1, 1)


def test_gc_removes_only_what_it_was_told_to(hicache, tmp_path):
    root = tmp_path / "kv"
    hashes = put(root)
    other = IDENTITY.replace(tenant="b")
    put(root, other)
    options = ("--backend", "file", "-o", f"root={root}", "--json")
    broken = stored_file(root / IDENTITY.namespace(), hashes[3])
    flip(broken, 100)
    dry = hicache("store", "gc", *options, "--corrupt", "--dry-run").json
    assert (dry["chosen"], dry["removed"]) == (1, 0)
    assert broken.exists()
    assert hicache("store", "gc", *options, "--corrupt").json["removed"] == 1
    assert not broken.exists()
    assert hicache("store", "gc", *options, "--namespace", other.namespace()).json["removed"] == 5
    assert len(hicache("store", "ls", *options).json) == 4


def test_gc_says_that_a_namespace_is_empty(hicache, tmp_path):
    put(tmp_path / "kv")
    done = hicache("store", "gc", "--backend", "file", "-o", f"root={tmp_path / 'kv'}", "-n", "typo")
    assert done.code == 0
    assert "'typo'" in done.err
    assert "removed 0 of 5" in done.out


def test_gc_without_a_rule_removes_nothing(hicache, tmp_path):
    root = tmp_path / "kv"
    put(root)
    done = hicache("store", "gc", "--backend", "file", "-o", f"root={root}")
    assert done.code == 2
    assert "--older-than" in done.err
    assert len(hicache("store", "ls", "--backend", "file", "-o", f"root={root}", "--json").json) == 5


def test_looking_at_a_root_that_is_not_there_makes_none(hicache, tmp_path):
    root = tmp_path / "typo"
    for verb in ("ls", "stat", "du", "verify"):
        done = hicache("store", verb, "--backend", "file", "-o", f"root={root}")
        assert done.code == 3, (verb, done)
        assert str(root) in done.err
        assert not root.exists()


def test_looking_does_not_make_pages_look_recently_used(hicache, tmp_path):
    root = tmp_path / "kv"
    hashes = put(root)
    path = stored_file(root, hashes[0])
    before = path.stat().st_mtime_ns
    assert hicache("store", "verify", "--backend", "file", "-o", f"root={root}", "-o", "touch_interval=0").code == 0
    assert path.stat().st_mtime_ns == before


def explained(hicache, tmp_path, identity: Identity, root: Path) -> list[dict]:
    (tmp_path / "identity.json").write_text(json.dumps(dataclasses.asdict(identity)))
    (tmp_path / "tokens.json").write_text(json.dumps([*TOKENS.tolist(), 7]))
    done = hicache(
        "explain", "--backend", "file", "-o", f"root={root}", "--identity", "identity.json",
        "--tokens", "tokens.json", "--json",
    )  # fmt: skip
    assert done.code == 0, done.err
    return done.json["rows"]


def test_explain_goes_page_by_page(hicache, tmp_path):
    root = tmp_path / "kv"
    hashes = put(root)
    flip(stored_file(root, hashes[2]), 300)
    stored_file(root, hashes[4]).unlink()
    rows = explained(hicache, tmp_path, IDENTITY, root)
    assert [row["state"] for row in rows] == ["stored", "stored", "corrupt", "stored", "missing", "partial"]
    assert [row["served"] for row in rows] == [True, True, False, False, False, False]
    assert "no gaps" in rows[3]["reason"]


def test_explain_finds_pages_of_other_weights(hicache, tmp_path):
    root = tmp_path / "kv"
    put(root)
    rows = explained(hicache, tmp_path, IDENTITY.replace(weights="declared:w2"), root)
    assert rows[0]["state"] == "missing"
    assert IDENTITY.namespace() in rows[0]["reason"]


@pytest.mark.parametrize(
    ("identity", "tokens", "word"),
    [
        ("{", "[1]", "identity"),
        ("{}", "[1]", "identity"),
        ('{"modle": 1}', "[1]", "modle"),
        ('{"model": ' * 100_000, "[1]", "nested too deeply"),
        (None, "{", "tokens"),
        (None, "[" * 100_000, "nested too deeply"),
        (None, "[-1]", "must not be negative"),
        (None, f"[{2**64}]", "token"),
        (None, f"[{'9' * 300}]", "token"),
    ],
)
def test_explain_refuses_bad_files(hicache, tmp_path, identity, tokens, word):
    put(tmp_path / "kv")
    (tmp_path / "i.json").write_text(json.dumps(dataclasses.asdict(IDENTITY)) if identity is None else identity)
    (tmp_path / "t.json").write_text(tokens)
    done = hicache(
        "explain", "-b", "file", "-o", f"root={tmp_path / 'kv'}", "--identity", "i.json", "--tokens", "t.json"
    )
    assert done.code == 2
    assert word in done.err
    assert "Traceback" not in done.err


def sealed_with(root: Path, key: bytes, **settings: Any) -> str:
    """Three pages whose seals nobody without the key can judge (b"": none at all); their namespace."""
    chosen = SessionSettings(mac_key=key, **settings)
    with open_session("file", identity=IDENTITY, options={"root": str(root)}, settings=chosen) as session:
        hashes = page_hashes(TOKENS, IDENTITY.page_size)[:3]
        assert all(session.set(hashes, [[bytes([n]) * 300] for n in range(3)]))
        return session.namespace


@pytest.mark.parametrize("settings", [{"mac_key": b"k" * 16}, {"mac_key": b"", "seal": False}], ids=["mac", "none"])
@pytest.mark.parametrize("given", [None, b"another key of 16"])
def test_gc_keeps_what_it_cannot_judge(hicache, tmp_path, settings, given):
    """A good page with a seal of another kind is not damaged; who wants it gone names its namespace."""
    root = tmp_path / "kv"
    put(root)
    namespace = sealed_with(root, settings["mac_key"], **{k: v for k, v in settings.items() if k != "mac_key"})
    options = ["--backend", "file", "-o", f"root={root}", "--json"]
    if given:
        (tmp_path / "key").write_bytes(given)
        options += ["--mac-key-file", "key"]
    done = hicache("store", "gc", *options, "--corrupt")
    assert (done.code, done.json["removed"], done.json["undecided"]) == (0, 0, 3)
    assert len(hicache("store", "ls", *options[:5]).json) == 8
    assert hicache("store", "gc", *options[:5], "--namespace", namespace).json["removed"] == 3


def test_gc_with_the_key_removes_what_is_damaged(hicache, tmp_path):
    root = tmp_path / "kv"
    namespace = sealed_with(root, b"k" * 16)
    (tmp_path / "key").write_bytes(b"k" * 16)
    flip(next((root / namespace).glob("*/*")), 100)
    done = hicache("store", "gc", "--backend", "file", "-o", f"root={root}", "--json", "--corrupt",
                   "--mac-key-file", "key")  # fmt: skip
    assert (done.json["removed"], done.json["undecided"]) == (1, 0)
    assert len(list((root / namespace).glob("*/*"))) == 2


@pytest.mark.parametrize("offset", [0, 9, 10, 12, 20, 50, 70])
def test_gc_removes_damage_wherever_it_is(hicache, tmp_path, offset):
    root = tmp_path / "kv"
    hashes = put(root)
    flip(stored_file(root, hashes[3]), offset)
    done = hicache("store", "gc", "--backend", "file", "-o", f"root={root}", "--corrupt", "--json").json
    assert done["removed"] == 1


def test_a_planted_file_that_is_larger_than_memory_is_reported(hicache, tmp_path):
    root = tmp_path / "kv"
    hashes = put(root)
    with stored_file(root, hashes[1]).open("r+b") as file:
        file.truncate(1 << 42)
    options = ("--backend", "file", "-o", f"root={root}", "--json")
    done = hicache("store", "verify", *options)
    assert (done.code, done.json["unreadable"], done.json["intact"]) == (1, 1, 4)
    assert "memory" in done.json["bad"][0]["reason"]
    assert hicache("store", "gc", *options, "--corrupt").json["removed"] == 0
