"""The back door for the conformance suite (entry point `hicache.backdoors`): a second client of the same store."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hicache_core.errors import StorageError
from hicache_core.plugin.dev_servers import DevServer
from hicache_mooncake.client import Client
from hicache_mooncake.codes import NOT_FOUND, told
from hicache_mooncake.connect import connect
from hicache_mooncake.dev_server import make_server
from hicache_mooncake.metrics import stored_keys
from hicache_mooncake.options import MooncakeOptions

_PATIENCE_SECONDS = 5.0


class MooncakeBackDoor:
    """Whole objects by the SDK's simplest calls."""

    root: Path | None = None
    empty_objects = False

    def __init__(self, client: Client, metrics_address: str) -> None:
        self._sdk, self._metrics_address = client.sdk, metrics_address

    def raw_get(self, key: str) -> bytes | None:
        """The object's bytes, or None."""
        size = self._sdk.get_size(key)
        if size == NOT_FOUND:
            return None
        data: bytes = self._sdk.get(key)
        if size < 0 or len(data) != size:
            raise StorageError(f"raw get of {key!r}: size {size}, {len(data)} bytes")
        return data

    def raw_set(self, key: str, data: bytes) -> None:
        """Put exactly these bytes there, at least one."""
        code = self._sdk.upsert(key, data)
        if code != 0:
            raise StorageError(f"raw set of {key!r}, {len(data)} bytes: {told(code)}")

    def raw_delete(self, key: str) -> bool:
        """Remove it, whatever lease it has; whether it was there."""
        return bool(self._sdk.remove(key, True) == 0)

    def raw_list(self) -> list[str]:
        """The keys of every object in the store."""
        if not self._metrics_address:
            raise StorageError("the keys of a Mooncake store are listed by its master over HTTP: set metrics_address")
        return stored_keys(self._metrics_address, _PATIENCE_SECONDS)


class MooncakeKit:
    """One server for all throwaway stores of a run: two keys of different stores never have a namespace in common."""

    def __init__(self) -> None:
        self._place: tempfile.TemporaryDirectory[str] | None = None
        self._server: DevServer | None = None
        self._doors: dict[tuple[str, str], Client] = {}

    def throwaway(self, directory: Path) -> dict[str, Any]:
        """Options of the server's store: its memory is owned by another process."""
        if self._server is None:
            self._place = tempfile.TemporaryDirectory(prefix="hicache-mooncake-")
            server = make_server(Path(self._place.name))
            server.start()
            self._server = server
        return dict(self._server.options)

    def back_door(self, backend: object, options: MooncakeOptions) -> MooncakeBackDoor:
        """A second client, kept for the next door to the same store."""
        place = (options.master_address, options.tenant_id)
        if place not in self._doors:
            self._doors[place] = connect(
                MooncakeOptions(master_address=options.master_address, tenant_id=options.tenant_id)
            )
        return MooncakeBackDoor(self._doors[place], options.metrics_address)

    def kill_store(self) -> None:
        """SIGKILL to master and owner."""
        if self._server is not None:
            self._server.kill()

    def restart_store(self) -> None:
        """Both again, on the same ports; a Mooncake store in memory is empty then."""
        if self._server is not None:
            self._server.restart()

    def close(self) -> None:
        """Close the doors, stop the server."""
        doors, self._doors = self._doors, {}
        server, self._server = self._server, None
        place, self._place = self._place, None
        for client in doors.values():
            client.close()
        if server is not None:
            server.stop()
        if place is not None:
            place.cleanup()


kit = MooncakeKit()
