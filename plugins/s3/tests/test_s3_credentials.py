"""Endpoint, region and credentials: options over environment over profile, and what contradicts itself is refused."""

import pytest
from hicache_s3.credentials import aws_settings
from hicache_s3.options import S3Options

from hicache_core.errors import OptionError


@pytest.fixture
def env(tmp_path):
    """An environment whose AWS files hold two profiles."""
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id=d-key\naws_secret_access_key=d-secret\n"
        "[work]\naws_access_key_id=w-key\naws_secret_access_key=w-secret\naws_session_token=w-token\n"
    )
    (tmp_path / "config").write_text(
        "[default]\nregion=eu-west-1\n[profile work]\nregion=eu-west-2\nendpoint_url=https://s3.work.example\n"
        "[profile sso]\nsso_session=corp\n"
    )
    return {
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
    }


def settings(env, **options):
    return aws_settings(S3Options(url="s3://b", **options), env)


def test_the_default_profile(env):
    found = settings(env)
    assert (found["access_key_id"], found["secret_access_key"], found["region"]) == ("d-key", "d-secret", "eu-west-1")
    assert "endpoint" not in found


def test_a_named_profile(env):
    for found in (settings(env, profile="work"), settings({**env, "AWS_PROFILE": "work"})):
        assert found["session_token"] == "w-token"
        assert found["endpoint"] == "https://s3.work.example"
        assert found["region"] == "eu-west-2"


def test_options_come_first(env):
    env["AWS_ACCESS_KEY_ID"] = "env-key"
    env["AWS_ENDPOINT_URL"] = "https://env.example"
    found = settings(env, access_key_id="k", secret_access_key="s", region="r", endpoint="https://h:9000/")
    assert (found["access_key_id"], found["secret_access_key"]) == ("k", "s")
    assert (found["region"], found["endpoint"]) == ("r", "https://h:9000")
    assert "session_token" not in found


def test_the_environment_comes_before_a_profile_that_was_not_named(env):
    env |= {
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_REGION": "r",
        "AWS_ENDPOINT_URL_S3": "https://e",
    }
    found = settings(env)
    assert "access_key_id" not in found, "left to obstore, which reads the environment itself"
    assert (found["region"], found["endpoint"]) == ("r", "https://e")
    assert settings(env, profile="work")["access_key_id"] == "w-key"


def test_nothing_anywhere_is_left_to_the_chain(tmp_path):
    nowhere = {"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "a"), "AWS_CONFIG_FILE": str(tmp_path / "b")}
    assert settings(nowhere) == {"unsigned_payload": True, "region": "us-east-1"}


def test_an_endpoint_of_the_environment_is_held_to_the_same_rule(env):
    with pytest.raises(OptionError, match="allow_http"):
        settings({**env, "AWS_ENDPOINT_URL": "http://plain.example"})


def test_anonymous_and_signed_payload(env):
    assert settings(env, anonymous=True) == {"unsigned_payload": True, "region": "eu-west-1", "skip_signature": True}
    assert settings(env, sign_payload=True)["unsigned_payload"] is False
    assert settings(env, virtual_hosted=True)["virtual_hosted_style_request"] is True


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"access_key_id": "k"}, "option secret_access_key is missing"),
        ({"secret_access_key": "s"}, "option access_key_id is missing"),
        ({"session_token": "t"}, "session_token is given without"),
        ({"profile": "wrok"}, "did you mean 'work'"),
        ({"profile": "nothing-like-it"}, "known: default, sso, work"),
    ],
)
def test_what_contradicts_itself(env, options, says):
    with pytest.raises(OptionError, match=says):
        settings(env, **options)


def test_a_profile_that_needs_boto3(env, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(OptionError, match="pip install boto3"):
        settings(env, profile="sso")


def test_a_file_that_is_no_config(env, tmp_path):
    (tmp_path / "credentials").write_text("secret-without-a-section=hunter2\n")
    with pytest.raises(OptionError, match="line 1") as caught:
        settings(env)
    assert "hunter2" not in str(caught.value)


def test_a_profile_opens_a_store(place, open_at, monkeypatch, tmp_path):
    (tmp_path / "own").write_text(
        f"[default]\naws_access_key_id={place['access_key_id']}\naws_secret_access_key={place['secret_access_key']}\n"
        f"region={place['region']}\nendpoint_url={place['endpoint']}\n"
    )
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "own"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    store = open_at(url=place["url"], allow_http=True)
    assert all(store.set(store.key(1)))


def test_the_environment_opens_a_store(place, open_at, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", place["access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", place["secret_access_key"])
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", place["endpoint"])
    store = open_at(url=place["url"], allow_http=True)
    assert all(store.set(store.key(1)))
