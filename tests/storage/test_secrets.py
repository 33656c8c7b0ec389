"""What a store was told in confidence is said by nothing that a session says of it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import pytest

from hicache_core.errors import OpenError, StorageError
from hicache_core.plugin.redaction import hider
from hicache_core.plugin.select import BackendChoice
from hicache_core.plugin.spec import hookimpl
from hicache_core.storage import open_session
from hicache_core.storage.settings import SessionSettings
from hicache_core.types import BackendSpec, Outcome, Page

from .conftest import Plain

SAID = "refused: hunter2%21 / hunter2! / s3cr3t / pa55word / t0ken, region eu"
SECRETS = ("hunter2", "s3cr3t", "pa55word", "t0ken")


class Options(msgspec.Struct):
    """Secrets in every way that options have them."""

    secret_key: str = "hunter2!"
    marked: Annotated[str, msgspec.Meta(extra={"secret": True})] = "s3cr3t"
    endpoint: str = "x://me:pa55word@host/b?token=t0ken&region=eu"
    inner: dict[str, Any] = msgspec.field(default_factory=lambda: {"list": [{"password": "s3cr3t"}]})


class Telling(Plain):
    """Every exception repeats all of it."""

    @hookimpl
    def batch_exists(self, keys: Sequence[str]) -> int:
        raise OSError(SAID)

    @hookimpl
    def batch_get(self, keys: Sequence[str], pages: Sequence[Page]) -> list[Outcome]:
        raise OSError(SAID)

    @hookimpl
    def stats(self) -> None:
        raise OSError(SAID)

    @hookimpl
    def close(self) -> None:
        raise OSError(SAID)


class Wrong(Plain):
    """Answers with the secret itself."""

    @hookimpl
    def batch_exists(self, keys: Sequence[str]) -> Any:
        return "hunter2!"


def none_in(*shown: object) -> bool:
    return not any(secret in str(one) for one in shown for secret in SECRETS)


@pytest.mark.parametrize("kind", [Telling, Wrong])
def test_nothing_that_a_session_says_repeats_a_secret(
    kit: Any, caplog: pytest.LogCaptureFixture, kind: type[Plain]
) -> None:
    caplog.set_level(logging.DEBUG)
    choice = BackendChoice(BackendSpec("x", "telling", Options, lambda *_: kind()), Options(), "test")
    session = open_session(choice, identity=kit.identity)
    for _ in range(5):  # until the breaker says why it opened
        session.exists(kit.hashes(1))
        session.get(kit.hashes(1), kit.rooms(1))
    status = session.status()
    assert status.recent_errors
    if kind is Telling:
        with pytest.raises(StorageError, match="region eu") as caught:
            session.stats()
        assert none_in(caught.value)
    report = session.close()
    assert none_in(status, session.ledger.as_dict(), report, caplog.text, choice)


def test_an_opening_that_failed_does_not_either(kit: Any) -> None:
    def refuse(*_: object) -> object:
        raise OSError(SAID)

    with pytest.raises(OpenError, match="region eu") as caught:
        open_session(BackendChoice(BackendSpec("x", "shut", Options, refuse), Options(), "t"), identity=kit.identity)
    assert none_in(caught.value)


def test_settings_show_no_key() -> None:
    assert "hunter2" not in repr(SessionSettings(mac_key=b"hunter2" * 3))
    assert "timeout=10.0" in repr(SessionSettings())


def test_a_short_secret_spoils_no_other_text() -> None:
    assert hider({"pin": "1", "password": ""})("1 of 21 pages") == "1 of 21 pages"
