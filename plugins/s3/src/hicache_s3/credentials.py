"""Endpoint, region and credentials of S3: from the options, else the environment, else a profile of the AWS files.

What none of them gives is left to obstore's own chain (web identity, ECS, EKS, the instance's metadata).
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hicache_core.errors import OptionError, nearest
from hicache_s3.options import S3Options

_NEEDS_BOTO3 = ("role_arn", "sso_session", "sso_start_url", "credential_process", "login_session")


def aws_settings(options: S3Options, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Settings for obstore's S3Store; `credential_provider` among them where boto3 must give the credentials.

    Raises OptionError for settings that contradict each other or cannot work.
    """
    env = os.environ if env is None else env
    profile = _profile(options, env)
    found: dict[str, Any] = {"unsigned_payload": not options.sign_payload}
    endpoint = (
        options.endpoint
        or env.get("AWS_ENDPOINT_URL_S3")
        or env.get("AWS_ENDPOINT_URL")
        or profile.get("endpoint_url")
    )
    if endpoint:
        found["endpoint"] = _checked_endpoint(endpoint, options)
    region = options.region or env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or profile.get("region")
    found["region"] = region or "us-east-1"
    if options.virtual_hosted:
        found["virtual_hosted_style_request"] = True
    if options.anonymous:
        return {**found, "skip_signature": True}
    return {**found, **_credentials(options, env, profile)}


def _credentials(options: S3Options, env: Mapping[str, str], profile: Mapping[str, str]) -> dict[str, Any]:
    key, secret = options.access_key_id, options.secret_access_key
    if (key is None) != (secret is None):
        missing = "secret_access_key" if secret is None else "access_key_id"
        raise OptionError(f"option {missing} is missing: access_key_id and secret_access_key go together")
    if key is not None:
        token = {"session_token": options.session_token} if options.session_token else {}
        return {"access_key_id": key, "secret_access_key": secret, **token}
    if options.session_token is not None:
        raise OptionError("option session_token is given without access_key_id and secret_access_key")
    if options.profile is None and env.get("AWS_ACCESS_KEY_ID"):
        return {}  # obstore reads the environment itself
    if "aws_access_key_id" in profile and "aws_secret_access_key" in profile:
        token = {"session_token": profile["aws_session_token"]} if profile.get("aws_session_token") else {}
        return {
            "access_key_id": profile["aws_access_key_id"],
            "secret_access_key": profile["aws_secret_access_key"],
            **token,
        }
    if any(name in profile for name in _NEEDS_BOTO3):
        return {"credential_provider": _boto3_provider(options.profile or env.get("AWS_PROFILE"))}
    return {}


def _boto3_provider(profile: str | None) -> Any:
    try:
        boto3: Any = import_module("boto3")
        provider: Any = import_module("obstore.auth.boto3")
    except ImportError as error:
        raise OptionError(
            f"profile {profile or 'default'!r} takes its credentials from SSO, a role or a process, which needs "
            "boto3: pip install boto3"
        ) from error
    return provider.Boto3CredentialProvider(boto3.session.Session(profile_name=profile))


def _profile(options: S3Options, env: Mapping[str, str]) -> dict[str, str]:
    """The profile's settings, credentials file over config file. Raises OptionError for an unknown name."""
    named = options.profile or env.get("AWS_PROFILE")
    name = named or "default"
    config = _sections(env.get("AWS_CONFIG_FILE") or "~/.aws/config")
    secrets = _sections(env.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials")
    found = {**config.get("default" if name == "default" else f"profile {name}", {}), **secrets.get(name, {})}
    if named and not found:
        known = sorted({*secrets, *(section.removeprefix("profile ") for section in config)})
        near = nearest(named, known)
        hint = f"; did you mean {near!r}?" if near else f"; known: {', '.join(known) or 'none'}"
        raise OptionError(f"profile {named!r} is in none of the AWS config files{hint}")
    return found


def _sections(path: str) -> dict[str, dict[str, str]]:
    parser = configparser.RawConfigParser(default_section="")
    try:
        parser.read(Path(path).expanduser())
    except configparser.Error as error:
        raise OptionError(
            f"{path} is no AWS config file that can be read: line {getattr(error, 'lineno', '?')}"
        ) from None
    return {name: dict(parser.items(name)) for name in parser.sections()}


def _checked_endpoint(endpoint: str, options: S3Options) -> str:
    try:
        parts = urlsplit(endpoint)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc
        good = good and not parts.query and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good:
        raise OptionError(f"endpoint is not of the form https://HOST[:PORT]: {_shown(endpoint)!r}")
    if parts.scheme == "http" and not options.allow_http:
        raise OptionError(
            f"endpoint {endpoint!r} is plain http, on which anybody can read and change pages; write https://, or "
            "set allow_http=true if the network is your own"
        )
    return endpoint.rstrip("/")


def _shown(endpoint: str) -> str:
    return endpoint.rpartition("@")[2].partition("?")[0]
