"""What the README shows runs when it is pasted."""

import re
import shlex
from pathlib import Path

from hicache_hf3fs.main import _parser

from hicache_core.plugin.options import split_assignments
from hicache_core.plugin.select import choose_backend

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_python_block_runs(tmp_path):
    [block] = re.findall(r"```python\n(.*?)```", README, re.S)
    names = {}
    exec(block.replace("/var/cache/hicache-hf3fs", str(tmp_path / "kv")), names)
    session = names["session"]
    page = bytearray(b"k" * 1000)
    assert all(session.set(["0" * 64], [[memoryview(page)]]))
    assert session.exists(["0" * 64]) == 1
    session.close()


def test_the_commands_are_ones():
    lines = [line for line in README.splitlines() if line.startswith("hicache-engine serve")]
    assert len(lines) == 2
    for line in lines:
        words = shlex.split(line)
        options = split_assignments([words[i + 1] for i, word in enumerate(words) if word == "-o"])
        assert choose_backend("hf3fs", options, strict=False).options.root == "/3fs/hicache"
    [line] = [line for line in README.splitlines() if line.startswith("hicache-hf3fs metadata")]
    assert _parser().parse_args(shlex.split(line)[1:]).port == 9700


def test_the_fake_is_called_one():
    assert "has not met a 3FS cluster yet" in README
