"""What is refused at open, with its cause and what to do about it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hicache_aibrix.options import AibrixOptions, capabilities
from hicache_aibrix.probe import probe

from hicache_core.errors import ConfigError, MissingDependencyError, OpenError, OptionError
from hicache_core.plugin.select import choose_backend
from hicache_core.types import IoContext, Outcome

README = (Path(__file__).parents[1] / "README.md").read_text()
Open = Callable[..., Any]

HOLD = """
import sys
from hicache_core.plugin.select import choose_backend, open_backend
from hicache_core.types import OpenContext
backend = open_backend(choose_backend("aibrix", {"root": sys.argv[1], "connector": "rocksdb"}), OpenContext("0" * 32))
print("open", flush=True)
sys.stdin.readline()
backend.close()
"""


def test_a_database_of_another_process_is_refused_until_that_ends(tmp_path: Path, opened: Open) -> None:
    options = {"root": str(tmp_path / "db"), "connector": "rocksdb"}
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, options["root"]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with pytest.raises(OpenError, match=r"in use .*one process at a time: give each process .* connector=shfs"):
            opened(options)
    finally:
        other.communicate("\n", timeout=60)
    opened(options)


def test_sessions_of_one_process_share_its_database(tmp_path: Path, opened: Open) -> None:
    options = {"root": str(tmp_path / "db"), "connector": "rocksdb"}
    link = tmp_path / "link"
    one = opened(options)
    link.symlink_to(tmp_path / "db")
    two = opened(options | {"root": str(link)})
    page = [memoryview(bytearray(b"x" * 50))]
    assert one.batch_set(["a/b"], [page], IoContext()) == [Outcome.STORED]
    one.close()
    assert two.batch_exists(["a/b"], IoContext()) == 1
    with pytest.raises(OpenError, match="open with other options"):
        opened(options | {"threads": 7})
    two.close()
    assert opened(options | {"threads": 7}).batch_exists(["a/b"], IoContext()) == 1


FORK = """
import gc, os, sys
from hicache_core.errors import MisuseError
from hicache_core.plugin.select import choose_backend, open_backend
from hicache_core.types import IoContext, OpenContext
choice = choose_backend("aibrix", {"root": sys.argv[1], "connector": sys.argv[2]})
backend = open_backend(choice, OpenContext("0" * 32))
page = [memoryview(bytearray(b"x" * 50))]
backend.batch_set(["a/b"], [page], IoContext())
child = os.fork()
if child == 0:
    try:
        backend.batch_exists(["a/b"], IoContext())
    except MisuseError as error:
        print(error, flush=True)
    backend.close()
    del backend
    gc.collect()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert backend.batch_set(["a/c"], [page], IoContext())
print(backend.batch_exists(["a/b", "a/c"], IoContext()), *backend.batch_get(["a/b"], [page], IoContext()))
backend.close()
"""


def test_a_forked_child_leaves_the_store_to_its_parent(options: dict[str, Any]) -> None:
    argv = [sys.executable, "-c", FORK, options["root"], options["connector"]]
    said = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=120).stdout.splitlines()
    assert len(said) == 2
    assert "a forked one opens its own" in said[0]
    assert said[1] == "2 Outcome.HIT"


def test_a_root_that_cannot_be_is_refused(options: dict[str, Any], opened: Open, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OpenError, match="is not a directory; name another root"):
        opened(options | {"root": str(tmp_path / "file")})
    with pytest.raises(OpenError, match="cannot be made"):
        opened(options | {"root": str(tmp_path / "file/below")})
    with pytest.raises(OpenError, match="there is no store at"):
        opened(options | {"root": str(tmp_path / "nothing")}, inspecting=True)
    assert not (tmp_path / "nothing").exists()


def test_a_root_that_cannot_be_written_is_refused(
    options: dict[str, Any], opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "store").mkdir(mode=0o500)
    if os.geteuid() == 0:  # who may write everywhere
        monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(OpenError, match="cannot be written by this user"):
        opened(options)


def test_a_root_of_the_other_connector_is_refused(options: dict[str, Any], opened: Open) -> None:
    opened(options).close()
    other = "shfs" if options["connector"] == "rocksdb" else "rocksdb"
    with pytest.raises(OpenError, match=f"holds a store of connector={options['connector']}, not of {other}"):
        opened(options | {"connector": other})


def test_a_damaged_database_is_refused(tmp_path: Path, opened: Open) -> None:
    options = {"root": str(tmp_path / "db"), "connector": "rocksdb"}
    opened(options).close()
    (tmp_path / "db/CURRENT").write_bytes(b"nonsense\n")
    with pytest.raises(OpenError, match="RocksDB refused"):
        opened(options)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"connector": "infinistore"}, "connector"), ({"rot": "x"}, "root"), ({"threads": 0}, "threads")],
)
def test_a_wrong_option_is_named(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        choose_backend("aibrix", {"root": "/tmp/x"} | wrong)


def test_options_of_the_other_connector_are_refused(tmp_path: Path, opened: Open) -> None:
    with pytest.raises(OptionError, match=r"ttl_seconds: only for connector=rocksdb"):
        opened({"root": str(tmp_path), "ttl_seconds": 5})


def test_the_options_of_rocksdb_reach_it(tmp_path: Path, opened: Open) -> None:
    opened(
        {
            "root": str(tmp_path / "db"),
            "connector": "rocksdb",
            "write_buffer_size": "3MiB",
            "max_wal_size": "5MiB",
            "background_jobs": 3,
            "ttl_seconds": 60,
        }
    )
    [newest] = sorted(tmp_path.glob("db/OPTIONS-*"))[-1:]
    found = newest.read_text()
    for line in (f"write_buffer_size={3 << 20}", f"max_total_wal_size={5 << 20}", "max_background_jobs=3"):
        assert line in found


def test_without_aibrix_the_install_line_is_told(options: dict[str, Any], opened: Open, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "aibrix_kvcache", None)
    with pytest.raises(MissingDependencyError, match="pip install 'aibrix-kvcache"):
        opened(options)


def test_the_entry_module_is_featherweight() -> None:
    code = "import sys, hicache_aibrix.plugin as p; p.hicache_backend(); print('torch' in sys.modules, *sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert said[0] == "False"
    assert not {"aibrix_kvcache", "hicache_core.storage", "hicache_aibrix.backend"} & set(said)


def test_the_probe_says_what_is_wrong(tmp_path: Path) -> None:
    assert probe(None) == probe(AibrixOptions(root=str(tmp_path / "new"))) == []
    (tmp_path / "file").write_bytes(b"")
    [said] = probe(AibrixOptions(root=str(tmp_path / "file/below")))
    assert "is not a directory" in said


def test_only_shfs_is_shared() -> None:
    assert capabilities(AibrixOptions(root="x")).shared
    assert not capabilities(AibrixOptions(root="x", connector="rocksdb")).shared


def test_the_configs_of_the_readme_open(tmp_path: Path, opened: Open) -> None:
    configs = re.findall(r"```json\n(.*?)```", README, re.S)
    assert len(configs) == 2
    for config in configs:
        pasted = msgspec.json.decode(config.replace("/var/cache", str(tmp_path)))
        assert pasted["backend"] == "aibrix"
        backend = opened(pasted["options"])
        assert backend.batch_set(["a/b"], [[memoryview(bytearray(9))]], IoContext()) == [Outcome.STORED]
