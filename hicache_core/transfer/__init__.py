"""Transfers between the device pool (L1) and the host pool (L2)."""

from __future__ import annotations

from hicache_core.transfer.ack import Ack
from hicache_core.transfer.backends import IO_BACKENDS, check_io_backend
from hicache_core.transfer.counter import LayerDoneCounter
from hicache_core.transfer.engine import TransferEngine

__all__ = ["IO_BACKENDS", "Ack", "LayerDoneCounter", "TransferEngine", "check_io_backend"]
