"""JSON, TOML and YAML, inline or in a file, give the same mapping."""

from __future__ import annotations

from pathlib import Path

import pytest

from hicache_core.config.documents import parse_document, read_document
from hicache_core.errors import ConfigError

WANTED = {"prefetch_threshold": 512, "root": "/kv", "direct": True, "nested": {"a": [1, 2]}}

JSON = '{"prefetch_threshold": 512, "root": "/kv", "direct": true, "nested": {"a": [1, 2]}}'
TOML = 'prefetch_threshold = 512\nroot = "/kv"\ndirect = true\n[nested]\na = [1, 2]\n'
YAML = "prefetch_threshold: 512\nroot: /kv\ndirect: true\nnested:\n  a: [1, 2]\n"
FLOW = "{prefetch_threshold: 512, root: /kv, direct: true, nested: {a: [1, 2]}}"


@pytest.mark.parametrize(
    "text", [JSON, TOML, YAML, FLOW, f"  {JSON}\n"], ids=["json", "toml", "yaml", "flow", "padded"]
)
def test_inline(text: str) -> None:
    assert parse_document(text, "x") == WANTED


@pytest.mark.parametrize(("suffix", "text"), [("json", JSON), ("toml", TOML), ("yaml", YAML), ("YML", YAML)])
def test_in_a_file(tmp_path: Path, suffix: str, text: str) -> None:
    path = tmp_path / f"extra.{suffix}"
    path.write_text(text)
    assert parse_document(f"@{path}", "x") == read_document(path) == WANTED


def test_nothing_is_an_empty_mapping(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("# only a comment\n")
    assert parse_document("", "x") == parse_document("{}", "x") == read_document(tmp_path / "empty.yaml") == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": 1,, }', r"is no sound JSON: .*line 1"),
        ('{"a": 1, "a": 2}', r"'a' is given twice"),
        ("a = 1\na = 2", "no sound TOML"),
        ("a = ", "no sound TOML"),
        ("a: 1\na: 2", r"'a' is given twice"),
        ("n: {b: 1, b: 2}", r"'b' is given twice"),
        ("a: [1, 2", "no sound YAML"),
        ("[1, 2]", "must be a mapping of option names to values, got list"),
        ("just text", "must be a mapping .* got str"),
        ("1: x", "option names are text, got 1"),
        ("!!python/object/apply:os.getcwd []", "no sound YAML"),
        ('{"a": ' * 100_000, "no sound JSON: brackets are nested too deeply"),
        ("a: " + "[" * 3000 + "]" * 3000, "no sound YAML: brackets are nested too deeply"),
        ("a = " + "[" * 5000 + "]" * 5000, "no sound TOML: brackets are nested too deeply"),
        ("@/nowhere/at/all.json", "cannot be read"),
        ("@extra.ini", r"ends in none of \.json, \.toml"),
    ],
)
def test_what_cannot_be_read_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=rf"^flag: .*{said}"):
        parse_document(text, "flag:".rstrip(":"))


def test_a_yaml_alias_within_itself_ends() -> None:
    found = parse_document("a: &x\n  b: *x\n", "x")
    assert set(found["a"]) == {"b"}


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_document(path)


@pytest.mark.parametrize(
    "text", ["password: [hunter2", "a: b\npassword: hunter2: x", '{"password": "hunter2', "password = hunter2"]
)
def test_the_text_is_not_quoted_back(text: str) -> None:
    """It may hold a secret."""
    with pytest.raises(ConfigError) as caught:
        parse_document(text, "x")
    assert "hunter2" not in str(caught.value)
    assert "line" in str(caught.value)
