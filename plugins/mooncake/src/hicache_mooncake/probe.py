"""What `hicache doctor` should say of a Mooncake store. Looks only; opens no client."""

from __future__ import annotations

from hicache_core.errors import HiCacheError
from hicache_mooncake.address import knock, parse_address
from hicache_mooncake.connect import available_memory
from hicache_mooncake.metrics import store_size
from hicache_mooncake.options import MooncakeOptions
from hicache_mooncake.sdk import load_sdk


def probe(options: MooncakeOptions | None) -> list[str]:
    """Complaints, each with its mend; empty where all is well."""
    try:
        load_sdk()
    except HiCacheError as error:
        return [str(error)]
    if options is None:
        return []
    try:
        return [*_servers(options), *_sizes(options)]
    except HiCacheError as error:
        return [str(error)]


def _servers(options: MooncakeOptions) -> list[str]:
    found = []
    named = {"standalone_address": options.standalone_address}
    if "://" not in options.master_address:
        named["master_address"] = options.master_address
    for name, text in named.items():
        trouble = knock(parse_address(text, name), options.connect_timeout) if text else ""
        if trouble:
            found.append(f"no Mooncake server at {name}={text}: {trouble}; start it, or correct the address")
    return found


def _sizes(options: MooncakeOptions) -> list[str]:
    found = []
    free = available_memory()
    if free is not None and not options.standalone_address and options.segment_size > free:
        found.append(f"segment_size={options.segment_size:,} is more memory than is free here ({free:,}); lower it")
    store = store_size(options)
    if options.metrics_address and store is None:
        found.append(
            f"metrics_address={options.metrics_address} does not answer; it is the HTTP port of mooncake_master "
            "(--metrics_port)"
        )
    elif store is not None and not store.capacity and not options.segment_size:
        found.append(
            "nobody gives memory to the store, so every set is rejected; set segment_size here, or start a "
            "mooncake_client --global_segment_size=…"
        )
    return found
