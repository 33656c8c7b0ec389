"""What a user can set, and how a URL says it."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl, urlsplit

import msgspec
from msgspec import Meta

from hicache_core.errors import OptionError
from hicache_core.plugin.redaction import redact_url
from hicache_core.plugin.sizes import ByteSize
from hicache_core.types import Capabilities
from hicache_s3.location import LOCAL, client_of, protocol_of

Secret = Annotated[str, Meta(extra={"secret": True})]


class S3Options(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """Options of backend `s3`. Sizes are in bytes ("64MiB" works too), times in seconds."""

    url: Annotated[
        str,
        Meta(description="bucket and prefix that are the store's own: s3://BUCKET/PREFIX, gs://…, az://…, or any URL "
             "that fsspec knows (file://, memory://, sftp://, …)"),
    ]  # fmt: skip
    endpoint: Annotated[
        str | None, Meta(description="S3 server, https://HOST[:PORT]; none: AWS, or what the chain says")
    ] = None
    region: Annotated[str | None, Meta(description="region to sign for; none: the chain's, else us-east-1")] = None
    profile: Annotated[
        str | None, Meta(description="profile of the AWS config files; none: AWS_PROFILE, else `default`")
    ] = None
    access_key_id: Annotated[
        str | None, Meta(description="credentials in place of the chain's; with secret_access_key")
    ] = None
    secret_access_key: Annotated[Secret | None, Meta(description="the secret of access_key_id")] = None
    session_token: Annotated[Secret | None, Meta(description="for temporary credentials")] = None
    anonymous: Annotated[bool, Meta(description="send unsigned requests")] = False
    virtual_hosted: Annotated[bool, Meta(description="put the bucket into the host name instead of the path")] = False
    allow_http: Annotated[bool, Meta(description="let the endpoint be plain http://")] = False
    ca_file: Annotated[str | None, Meta(description="PEM file of further certificate authorities to trust")] = None
    insecure_tls: Annotated[bool, Meta(description="accept any certificate: for trials, never for production")] = (
        False
    )
    sign_payload: Annotated[
        bool, Meta(description="put a SHA-256 of the bytes into each signature; the seal finds damage without it")
    ] = False
    conditional: Annotated[
        Literal["auto", "off"],
        Meta(description="auto: find out at open whether the server honours If-None-Match, so that the first writer "
             "wins; off: do not use it (declares that the store cannot tell)"),
    ] = "auto"  # fmt: skip
    concurrency: Annotated[int, Meta(description="pages in flight at once, per call", ge=1, le=256)] = 16
    exists_concurrency: Annotated[int, Meta(description="keys asked for at once, per call", ge=1, le=512)] = 64
    multipart_threshold: Annotated[
        ByteSize, Meta(description="pages larger than this go up in parts", ge=5 << 20)
    ] = 64 << 20
    multipart_chunk: Annotated[ByteSize, Meta(description="bytes of a part", ge=5 << 20)] = 16 << 20
    connect_timeout: Annotated[float, Meta(description="seconds to a connection", gt=0)] = 2.0
    timeout: Annotated[float, Meta(description="seconds for one request, body included", gt=0)] = 10.0
    open_timeout: Annotated[
        float, Meta(description="seconds for everything that opening asks of the server", gt=0)
    ] = 8.0
    retries: Annotated[int, Meta(description="repetitions of a failed request, within its timeout", ge=0, le=20)] = 2
    client: Annotated[
        Literal["auto", "obstore", "fsspec"],
        Meta(description="auto: obstore for S3, GCS and Azure, fsspec for everything else"),
    ] = "auto"
    storage_options: Annotated[
        dict[str, Any],
        Meta(description="further settings by the client's own names (obstore's config, fsspec's options)"),
    ] = {}


def capabilities(options: S3Options) -> Capabilities:
    """What a store with these options declares; an opened one takes back what the server does not honour."""
    protocol, native = protocol_of(options.url), client_of(options.url, options.client) == "obstore"
    first_writer_wins = (native and options.conditional == "auto") or protocol in LOCAL
    return Capabilities(
        durable=native,
        shared=protocol != "memory",
        replace=True,
        delete="immediate" if native or protocol in (*LOCAL, "memory") else "eventual",
        scan=True,
        reports_exists=first_writer_wins,
        clean_miss=True,
        variable_length=True,
        parallelism=2,  # two calls of one batch: the pages of one are verified while those of the other come
    )


def options_from_url(url: str) -> dict[str, str]:
    """Options in `s3://bucket/prefix?region=eu-west-1`: url, and in the query the rest (as text).

    Raises OptionError for credentials before the bucket, which would end up in logs.
    """
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise OptionError(
            f"{redact_url(url)} has credentials before the bucket; set access_key_id and secret_access_key, or leave "
            "them to the environment or a profile"
        )
    found = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    if parts.netloc:
        found["url"] = f"{parts.scheme}://{parts.netloc}{parts.path}"
    return found
