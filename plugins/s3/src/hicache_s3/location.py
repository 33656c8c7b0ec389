"""Where a URL leads: the protocol, the client for it, the bucket and the prefix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote, urlsplit

from hicache_core.errors import OptionError, nearest
from hicache_core.plugin.redaction import redact_url

S3 = frozenset({"s3", "s3a"})
NATIVE = S3 | {"gs", "az", "azure", "abfs", "abfss", "adl"}
"""Protocols that obstore speaks."""
LOCAL = frozenset({"file", "local"})
OBJECT_STORES = NATIVE | {"gcs", "memory", "oss", "oci", "obs", "tos", "swift"}
"""Protocols of fsspec where one put makes the object visible with all its bytes; elsewhere it takes a rename."""


@dataclass(frozen=True, slots=True)
class Location:
    """A parsed `url`. base: what the client is opened with. prefix: of every path, without slashes at its ends."""

    protocol: str
    base: str
    bucket: str
    prefix: str

    def path(self, name: str) -> str:
        """The path of a name under the prefix."""
        return f"{self.prefix}/{name}" if self.prefix else name


def protocol_of(url: str) -> str:
    """What stands before `://`; chained URLs (`simplecache::s3://…`) answer with their first part."""
    return url.partition("::")[0].partition("://")[0].lower()


def client_of(url: str, wanted: Literal["auto", "obstore", "fsspec"] = "auto") -> Literal["obstore", "fsspec"]:
    """Which client opens this URL."""
    if wanted != "auto":
        return wanted
    return "obstore" if "::" not in url and protocol_of(url) in NATIVE else "fsspec"


def locate(url: str) -> Location:
    """Take a URL for obstore apart. Raises OptionError that shows the right form."""
    protocol = protocol_of(url)
    if protocol not in NATIVE:
        near = nearest(protocol, NATIVE)
        hint = f"; did you mean {near}://?" if near else "; leave client to `auto`, then fsspec opens it"
        raise OptionError(f"url {redact_url(url)}: obstore knows {', '.join(sorted(NATIVE))}{hint}")
    parts = urlsplit(url)
    if "@" in parts.netloc and protocol in S3:
        raise OptionError(f"url {redact_url(url)} has credentials before the bucket; use the options for them")
    if parts.query or parts.fragment:
        raise OptionError(f"url {redact_url(url)} has a query; give every setting as an option of its own")
    if not parts.netloc:
        raise OptionError(f"url {redact_url(url)} names no bucket; write {protocol}://BUCKET/PREFIX")
    return Location(protocol, f"{protocol}://{parts.netloc}", parts.netloc, clean_prefix(unquote(parts.path), url))


def clean_prefix(path: str, url: str) -> str:
    """The prefix without outer slashes. Raises OptionError where a segment is empty, `.` or `..`."""
    prefix = path.strip("/")
    if prefix and any(segment in ("", ".", "..") for segment in prefix.split("/")):
        raise OptionError(f"url {redact_url(url)}: the prefix {prefix!r} has an empty segment, `.` or `..`")
    return prefix
