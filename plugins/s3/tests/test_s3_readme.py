"""What the README shows runs when it is pasted, and its table of options is the truth."""

import re
from pathlib import Path

from hicache_s3.options import S3Options

from hicache_core.plugin.options import describe_options
from hicache_core.plugin.select import choose_backend

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_python_block_runs(place, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", place["access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", place["secret_access_key"])
    [block] = re.findall(r"```python\n(.*?)```", README, re.S)
    names = {}
    exec(
        block.replace("http://127.0.0.1:8333", place["endpoint"]).replace("s3://kvcache/hicache", place["url"]), names
    )
    session = names["session"]
    page = bytearray(b"k" * 1000)
    assert all(session.set(["0" * 64], [[memoryview(page)]], timeout=60))
    assert session.exists(["0" * 64], timeout=60) == 1
    session.close()


def test_the_urls_are_some():
    [url] = re.findall(r"'(s3://[^']*)'", README)
    assert choose_backend(url).options == S3Options(url="s3://kvcache/hicache", region="eu-central-1")


def test_the_defaults_in_the_table_are_the_defaults():
    shown = dict(re.findall(r"^\| `(\w+)` \|([^|]*)\|", README, re.M))
    for option in describe_options(S3Options):
        default = shown[option.name].strip().strip("`")
        if option.name in ("url", "endpoint", "region"):
            continue
        value = S3Options(url="s3://b").__getattribute__(option.name)
        wanted = {None: "", False: "false"}.get(value if not isinstance(value, dict) else None, str(value))
        if isinstance(value, int) and value >= 1 << 20:
            wanted = f"{value >> 20} MiB"
        assert default == wanted.removesuffix(".0"), option.name
