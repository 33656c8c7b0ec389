"""What `hicache doctor` should say of NIXL. Makes agents, moves nothing."""

from __future__ import annotations

from hicache_file.probe import probe as probe_of_files

from hicache_core.errors import OpenError
from hicache_nixl.agents import Agents
from hicache_nixl.options import NixlOptions


def probe(options: NixlOptions | None) -> list[str]:
    """Complaints, each with its mend; empty where all is well."""
    if options is None or options.plugin == "OBJ":
        return [] if options is None or options.bucket else ["plugin OBJ needs option bucket"]
    if not options.root:
        return ["plugin POSIX needs option root: the store's own directory"]
    found = probe_of_files(options.of_files())
    try:
        Agents(1, "POSIX", {}).close()
    except OpenError as error:
        found.append(str(error))
    return found
