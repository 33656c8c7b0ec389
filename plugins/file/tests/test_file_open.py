"""What can be wrong with a root is said when it is opened, with the mend."""

import os
import stat
import subprocess
import sys
import tempfile

import pytest
from hicache_file.backend import open_file
from hicache_file.options import FileOptions
from hicache_file.probe import probe

from hicache_core.errors import OpenError, OptionError
from hicache_core.plugin.select import choose_backend
from hicache_core.types import OpenContext

CTX = OpenContext(namespace="0" * 32)


def refused(error, **options):
    with pytest.raises(error) as caught:
        open_file(FileOptions(**options), CTX)
    return str(caught.value)


OPEN_AS_NOBODY = """
import os, sys
from hicache_core.types import OpenContext
from hicache_file.backend import open_file
from hicache_file.options import FileOptions
from hicache_file.probe import probe
options = FileOptions(root=sys.argv[1])
os.setgid(65534)
os.setuid(65534)
print(probe(options))
try:
    open_file(options, OpenContext(namespace="0" * 32)).close()
except Exception as error:
    print(type(error).__name__, error)
"""


def test_the_root_and_all_below_it_are_private(open_store, root):
    store = open_store()
    store.set(store.key(1))
    modes = {p.relative_to(root): stat.S_IMODE(p.stat().st_mode) for p in [root, *root.rglob("*")]}
    assert all(mode == (0o700 if (root / path).is_dir() else 0o600) for path, mode in modes.items()), modes


def test_an_empty_root(tmp_path):
    assert "directory" in refused(OptionError, root="")
    assert "NUL" in refused(OptionError, root="a\0b")


def test_a_root_that_is_a_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("x")
    assert "is not a directory" in refused(OpenError, root=str(path))
    assert "is not a directory" in refused(OpenError, root=str(path / "below"))
    assert path.read_text() == "x"


def test_a_root_that_cannot_be_made(tmp_path):
    assert "cannot be opened" in refused(OpenError, root="/proc/hicache-store")


@pytest.fixture
def foreign_root():
    """A directory of root's that other users may look into (unlike pytest's own)."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to open a directory as another user")
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        yield place


def test_a_root_that_cannot_be_written(foreign_root):
    command = [sys.executable, "-c", OPEN_AS_NOBODY, foreign_root]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    told, refusal = run.stdout.splitlines()
    assert "cannot be written" in told
    assert refusal.startswith("OpenError")
    assert f"root {foreign_root} cannot be used by this user" in refusal


def test_a_root_that_everybody_can_write(tmp_path):
    tmp_path.chmod(0o777)
    message = refused(OpenError, root=str(tmp_path))
    assert f"chmod o-w {tmp_path}" in message
    assert list(tmp_path.iterdir()) == []


def test_a_root_that_is_a_link(tmp_path):
    real = tmp_path / "real"
    real.mkdir(0o700)
    link = tmp_path / "link"
    link.symlink_to(real)
    assert "allow_symlink" in refused(OpenError, root=str(link))
    assert list(real.iterdir()) == []
    open_file(FileOptions(root=str(link), allow_symlink=True), CTX).close()
    assert (real / "+hicache").is_dir()


def test_control_directories_that_are_links(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    root = tmp_path / "root"
    root.mkdir(0o700)
    (root / "+hicache").symlink_to(elsewhere)
    refused(OpenError, root=str(root))
    assert list(elsewhere.iterdir()) == []


def test_a_store_of_a_later_layout_is_left_alone(root, open_store, monkeypatch):
    store = open_store()
    store.set(store.key(1))
    store.backend.close()
    monkeypatch.setattr("hicache_file.account._VERSION", 0)
    assert "upgrade" in refused(OpenError, root=str(root))


def test_min_free_space_that_leaves_nothing(tmp_path):
    assert "leaves nothing" in refused(OptionError, root=str(tmp_path), min_free_space=10**18)


def test_a_failed_open_leaves_no_descriptor(tmp_path, monkeypatch):
    before = len(os.listdir("/proc/self/fd"))
    (tmp_path / "+hicache").mkdir()
    (tmp_path / "+hicache" / "account").mkdir()
    refused(OpenError, root=str(tmp_path))
    refused(OptionError, root=str(tmp_path), min_free_space=10**18)
    assert len(os.listdir("/proc/self/fd")) == before


def test_home_and_relative_roots(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    open_file(FileOptions(root="~/a/b"), CTX).close()
    open_file(FileOptions(root="c"), CTX).close()
    assert (tmp_path / "a" / "b" / "+hicache").is_dir()
    assert (tmp_path / "c" / "+hicache").is_dir()


def test_options_in_a_url(tmp_path):
    choice = choose_backend(f"file://{tmp_path}/a%20b?max_size=10MB&sync=data&direct=true")
    assert choice.options == FileOptions(root=f"{tmp_path}/a b", max_size=10_000_000, sync="data", direct=True)
    assert choice.capabilities.alignment == 4096
    with pytest.raises(OptionError, match="three slashes"):
        choose_backend("file://var/kv")


def test_the_entry_points_module_is_light():
    code = (
        "import sys, hicache_file.plugin; print([m for m in ('torch', 'hicache_file.backend') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_plugin_is_found():
    choice = choose_backend("file", {"root": "/x", "max_size": "1GiB"})
    assert choice.options.max_size == 1 << 30
    assert choice.capabilities.durable
    assert choice.capabilities.alignment == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [({}, "'root' is required"), ({"rot": "/x"}, "did you mean 'root'"), ({"root": "/x", "sync": "ful"}, "'full'")],
)
def test_wrong_options_name_the_right_ones(options, says):
    with pytest.raises(OptionError, match=says):
        choose_backend("file", options)


def test_probe_tells_what_doctor_should_say(tmp_path):
    assert probe(None) == []
    assert probe(FileOptions(root=str(tmp_path / "a" / "b"))) == []
    assert probe(FileOptions(root=str(tmp_path))) == []
    (tmp_path / "file").write_text("")
    assert "not a directory" in probe(FileOptions(root=str(tmp_path / "file")))[0]
    (tmp_path / "link").symlink_to(tmp_path)
    assert "symbolic link" in probe(FileOptions(root=str(tmp_path / "link")))[0]
    found = probe(FileOptions(root=str(tmp_path), max_size=10**18, min_free_space=10**18))
    assert len(found) == 2
    tmp_path.chmod(0o777)
    assert "chmod o-w" in probe(FileOptions(root=str(tmp_path)))[0]
    assert not (tmp_path / "+hicache").exists()


@pytest.mark.parametrize("url", ["file://me:hunter2@host/kv?token=hunter2", "file://me:hunter2@host/kv?hunter2"])
def test_a_url_with_a_host_is_refused_without_its_secrets(url):
    with pytest.raises(OptionError) as caught:
        choose_backend(url)
    assert "hunter2" not in str(caught.value)


def test_the_home_of_nobody_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError, match="home of a user"):
        open_file(FileOptions(root="~nobody-of-this-name/kv"), CTX)
    assert not list(tmp_path.iterdir())
