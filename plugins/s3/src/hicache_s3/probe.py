"""What `hicache doctor` should say of an s3 store. Reads only; makes and changes nothing."""

from __future__ import annotations

from importlib import import_module

from hicache_core.errors import HiCacheError
from hicache_s3.opening import open_store
from hicache_s3.options import S3Options


def probe(options: S3Options | None) -> list[str]:
    """Complaints, each with its mend; empty where all is well or no options are given."""
    if options is None:
        return _clients()
    try:
        open_store(options, inspecting=True).close()
    except HiCacheError as error:
        return [str(error)]
    found = []
    if options.insecure_tls:
        found.append("insecure_tls=true accepts any certificate; name the authority in ca_file instead")
    if options.endpoint is not None and options.endpoint.startswith("http://"):
        found.append(f"endpoint {options.endpoint} is plain http: fit for a trusted network only")
    return found


def _clients() -> list[str]:
    try:
        import_module("fsspec")
        import_module("obstore")
    except ImportError as error:
        return [f"a client cannot be imported: {error}; pip install --upgrade hicache-s3"]
    return []
