"""Options are typed; what is wrong with one is said with its name and the good ones."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from hicache_core.errors import OptionError
from hicache_core.plugin.options import (
    ByteSize,
    describe_options,
    format_size,
    parse_options,
    parse_size,
    split_assignments,
)
from hicache_core.plugin.redaction import HIDDEN, is_secret, redact, redact_url


class Options(msgspec.Struct, kw_only=True):
    root: Annotated[str, Meta(description="directory of the store")]
    max_size: Annotated[ByteSize, Meta(description="bytes on disk", ge=0)] = 1 << 30
    reserve: ByteSize | None = None
    sync: Annotated[Literal["none", "data", "full"], Meta(description="what a write waits for")] = "none"
    direct: bool = False
    ratio: Annotated[float, Meta(gt=0, le=1)] = 0.5
    hosts: tuple[str, ...] = ()
    limits: dict[str, int] = {}
    retries: int | None = 3
    access_key: str = ""
    pin: Annotated[int, Meta(extra={"secret": True})] = 0

    def __post_init__(self) -> None:
        if self.root == "/":
            raise ValueError("root must not be /")


class Wrapper(msgspec.Struct):
    PASSTHROUGH: ClassVar[str] = "rest"
    ALIASES: ClassVar[dict[str, str]] = {"inner_name": "inner"}
    inner: str
    seed: int = 0
    rest: dict[str, Any] = {}


def parse(strict: bool = True, **options: Any) -> Options:
    return parse_options(Options, {"root": "/kv", **options}, where="backend 'file'", strict=strict)


def test_defaults_and_types() -> None:
    options = parse(max_size="10GB", reserve="1.5GiB", hosts=["a", "b"], ratio=1)
    assert (options.max_size, options.reserve, options.hosts) == (10 * 10**9, 3 << 29, ("a", "b"))
    assert (options.sync, options.retries, options.limits) == ("none", 3, {})
    assert parse(max_size=7).max_size == 7


def test_text_from_a_command_line() -> None:
    options = parse(
        False, direct="true", ratio="0.25", hosts="a, b", limits='{"x": 1}', retries="none", max_size="64KiB", pin="7"
    )
    assert (options.direct, options.ratio, options.hosts, options.limits) == (True, 0.25, ("a", "b"), {"x": 1})
    assert (options.retries, options.max_size, options.pin) == (None, 65536, 7)
    for text, value in [("1", True), ("0", False), ("on", True), ("no", False), ("False", False)]:
        assert parse(False, direct=text).direct is value
    assert parse(False, retries="5").retries == 5
    assert parse(False, hosts='["a,b"]').hosts == ("a,b",)
    assert parse(False, root="7").root == "7"
    assert parse(False, **{"max-size": "9"}).max_size == 9


BAD: list[tuple[dict[str, Any], bool, str]] = [
    ({"max_sise": 1}, True, r"unknown option 'max_sise'; did you mean 'max_size'\? Options: root, max_size"),
    ({"zzz": 1}, True, r"unknown option 'zzz'\. Options: root"),
    ({"max_size": "10GG"}, True, r"'max_size'.*'10GG' is no size"),
    ({"max_size": "10G"}, False, r"'max_size'.*GB"),
    ({"max_size": -1}, True, r"'max_size'.*>= 0"),
    ({"max_size": 1.5}, True, r"'max_size'.*got float"),
    ({"max_size": None}, True, r"'max_size'.*got null"),
    ({"direct": "true"}, True, r"'direct'.*expected bool, got str"),
    ({"direct": "maybe"}, False, r"'direct'.*expected bool"),
    ({"direct": 1}, True, r"'direct'.*expected bool, got int"),
    ({"sync": "ful"}, True, r"'sync'.*'ful' is none of data, full, none; did you mean 'full'"),
    ({"ratio": 0}, True, r"'ratio'.*> 0"),
    ({"ratio": "much"}, False, r"'ratio'.*expected float"),
    ({"limits": '{"x": '}, False, r"'limits'"),
    ({"limits": {"x": "y"}}, True, r"'limits'.*expected int"),
    ({"hosts": 5}, True, r"'hosts'.*expected array"),
    ({"retries": "many"}, False, r"'retries'"),
    ({"root": 5}, True, r"'root'.*expected str, got int"),
    ({"root": "/"}, True, r"root must not be /"),
]


@pytest.mark.parametrize(("options", "strict", "said"), BAD)
def test_a_bad_option_is_named(options: dict[str, Any], strict: bool, said: str) -> None:
    with pytest.raises(OptionError, match=r"^backend 'file': .*" + said):
        parse(strict, **options)


def test_a_missing_option_is_named() -> None:
    with pytest.raises(OptionError, match="'root' is required"):
        parse_options(Options, {})


def test_an_option_given_in_two_spellings() -> None:
    with pytest.raises(OptionError, match="'max_size' is given twice"):
        parse(**{"max-size": 1, "max_size": 2})


def test_other_options_pass_through() -> None:
    wrapper = parse_options(Wrapper, {"inner_name": "file", "seed": 3, "root": "/kv", "rest": {"sync": "full"}})
    assert (wrapper.inner, wrapper.seed, wrapper.rest) == ("file", 3, {"root": "/kv", "sync": "full"})
    assert parse_options(Wrapper, {"inner": "x"}).rest == {}


def test_options_are_described() -> None:
    found = {o.name: o for o in describe_options(Options)}
    assert list(found) == list(Options.__struct_fields__)
    assert (found["root"].required, found["root"].help) == (True, "directory of the store")
    assert (found["max_size"].type, found["max_size"].default) == ("size", 1 << 30)
    assert found["reserve"].type == "size or null"
    assert found["sync"].type == "data | full | none"
    assert found["ratio"].type == "number > 0 <= 1"
    assert (found["hosts"].type, found["hosts"].default, found["limits"].default) == ("list of text", (), {})
    assert [o.name for o in found.values() if o.secret] == ["access_key", "pin"]
    assert describe_options(Wrapper)[2].type == "all other options"


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("0", 0),
        ("512", 512),
        ("64KiB", 65536),
        ("10GB", 10**10),
        ("1.5 gib", 3 << 29),
        ("4gb", 4 * 10**9),
        ("5B", 5),
        ("1TiB", 1 << 40),
    ],
)
def test_sizes(text: str, nbytes: int) -> None:
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "GB", "-1", "1e9", "10G", "1 iB", "10 GBB", "ten", "1.5.5GB", "1_000"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is no size"):
        parse_size(text)


@given(st.integers(0, 1 << 60))
def test_formatted_sizes_read_back_nearly(nbytes: int) -> None:
    assert parse_size(format_size(nbytes)) == pytest.approx(nbytes, rel=1e-3, abs=1)


def test_assignments() -> None:
    assert split_assignments(["root=/x", "query=a=b", "empty="]) == {"root": "/x", "query": "a=b", "empty": ""}
    for bad, said in [(["root"], "NAME=VALUE"), (["=x"], "NAME=VALUE"), (["a=1", "a=2"], "twice")]:
        with pytest.raises(OptionError, match=said):
            split_assignments(bad)


def test_secrets_are_hidden_wherever_options_are_shown() -> None:
    shown = redact(parse(access_key="AKIA", pin=1234))
    assert (shown["access_key"], shown["pin"], shown["root"]) == (HIDDEN, HIDDEN, "/kv")
    nested = redact({"s3": {"secretKey": "x", "region": "eu"}, "list": [{"password": 5}], "url": "redis://u:pw@h/0"})
    assert nested == {
        "s3": {"secretKey": HIDDEN, "region": "eu"},
        "list": [{"password": HIDDEN}],
        "url": "redis://u:***@h/0",
    }


def test_harmless_names_stay_visible() -> None:
    harmless = {"prefetch_timeout_per_ki_token": 0.25, "max_tokens": 10, "monkey": "x", "key_count": 4, "token": ""}
    assert redact(harmless) == harmless
    assert is_secret("api_key", "x")
    assert is_secret("AWS_SECRET_ACCESS_KEY", "x")
    assert not is_secret("token", None)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://key:secret@host:9000/b?region=eu&token=abc", "s3://key:***@host:9000/b?region=eu&token=***"),
        ("file:///kv?max_size=1", "file:///kv?max_size=1"),
        ("x://h?password=1&b=", "x://h?password=***&b="),
        ("x://h?hunter2", "x://h?***"),
        ("x://h?a=1&hunter2&b=2", "x://h?a=1&***&b=2"),
        ("x://h?sig=1&pwd=2", "x://h?sig=***&pwd=***"),
        ("x://h?at=db%3A%2F%2Fme%3Ahunter2%40h", "x://h?at=db://me:***@h"),
        ("x://[bad", HIDDEN),
    ],
)
def test_urls_are_redacted(url: str, shown: str) -> None:
    assert redact_url(url) == shown


@given(st.text(max_size=40), st.text("XYZ0123456789", min_size=8, max_size=20))
def test_a_password_never_shows(prefix: str, secret: str) -> None:
    assert secret not in str(redact({"password": secret, "inner": {"token": prefix + secret}}).values())


def test_a_bad_secret_is_not_printed_in_its_error() -> None:
    with pytest.raises(OptionError) as caught:
        parse(pin="hunter2secret")
    assert "hunter2secret" not in str(caught.value)
