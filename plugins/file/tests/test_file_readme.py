"""What the README shows runs when it is pasted."""

import re
from pathlib import Path

from hicache_file.options import FileOptions

from hicache_core.plugin.select import choose_backend

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_python_blocks_run(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", README, re.S)
    assert len(blocks) == 2
    names = {}
    for block in blocks:
        exec(block.replace("/var/cache/hicache", str(tmp_path / "kv")).replace('"10GB"', '"1MB"'), names)
    session = names["session"]
    page = bytearray(b"k" * 1000)
    assert all(session.set(["0" * 64], [[memoryview(page)]]))
    assert session.exists(["0" * 64]) == 1
    session.close()


def test_the_url_is_one(tmp_path):
    [url] = re.findall(r"'(file://[^']*)'", README)
    assert choose_backend(url).options == FileOptions(root="/var/cache/hicache", max_size=200_000_000_000)
