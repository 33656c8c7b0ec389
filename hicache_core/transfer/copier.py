"""What the transfer engine asks of whoever moves bytes between the pools."""

from __future__ import annotations

from typing import Protocol

from hicache_core.types import Slots


class Copier(Protocol):
    """Moves pages between one host pool and one device pool. Slots are page slots, paired by position.

    The engine's thread calls fence and wait_event; one thread per direction calls the rest.
    """

    def fence(self) -> object | None:
        """A mark of the device work submitted so far, which a copy has to come after; None where there is none."""

    def backup(self, host_slots: Slots, device_slots: Slots, fence: object | None) -> None:
        """Device to host, every layer. The bytes are in place when it returns."""

    def load_layer(self, layer: int, host_slots: Slots, device_slots: Slots, fence: object | None) -> object | None:
        """Host to device, one layer. In place when it returns, or when the event it gives has passed."""

    def finish_load(self) -> None:
        """Return when every load_layer so far is in place: the host pages may then be overwritten."""

    def wait_event(self, event: object) -> None:
        """Make what the calling thread submits next to the device come after `event`."""
