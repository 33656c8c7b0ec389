"""What the README shows runs when it is pasted."""

import re
import shlex
from pathlib import Path

from hicache_mooncake.options import MooncakeOptions

from hicache_core.plugin.select import choose_backend

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_python_block_runs(store):
    [block] = re.findall(r"```python\n(.*?)```", README, re.S)
    options = store.options
    block = block.replace("127.0.0.1:50051", options["master_address"])
    names = {}
    exec(block.replace("127.0.0.1:9003", options["metrics_address"]), names)
    session = names["session"]
    page = bytearray(b"k" * 1000)
    try:
        assert all(session.set(["0" * 64], [[memoryview(page)]]))
        assert session.exists(["0" * 64]) == 1
        assert session.clear() == 1
    finally:
        session.close()


def test_the_commands_are_those_of_the_dev_server(serve):
    """Both binaries get only flags that the throwaway server is started with."""
    server = serve(segment_bytes=64 << 20)
    for line, process in zip(re.findall(r"^mooncake_\w+ .*$", README, re.M), server.processes, strict=True):
        given = {word.partition("=")[0] for word in shlex.split(line)[1:]}
        assert given <= {word.partition("=")[0] for word in process.argv[1:]}


def test_the_url_is_one():
    [url] = re.findall(r"'(mooncake://[^']*)'", README)
    assert choose_backend(url).options == MooncakeOptions(
        master_address="127.0.0.1:50051", metrics_address="127.0.0.1:9003", segment_size=1_000_000_000
    )
