"""The io backends by name, and what each needs."""

from __future__ import annotations

from hicache_core.errors import ConfigError, UnknownNameError
from hicache_core.pools.device.base import DevicePool
from hicache_core.pools.host.base import HostPool
from hicache_core.pools.layouts import LAYOUTS
from hicache_core.transfer.copier import Copier
from hicache_core.transfer.cpu import CpuCopier

IO_BACKENDS = ("kernel", "direct", "kernel_ascend")


def check_io_backend(io_backend: str, layout: str) -> None:
    """Refuse an io backend that is not there, or not for this layout. Raises ConfigError with what to take.

    kernel moves rows and takes every layout. direct moves whole pages of a layer and takes the layouts that keep
    those together. On the CPU both end in the same copies, with rows as long as the layout lets them be.
    """
    if io_backend not in IO_BACKENDS:
        raise UnknownNameError("io backend", io_backend, IO_BACKENDS)
    if io_backend == "kernel_ascend":
        raise ConfigError(
            "io backend 'kernel_ascend' is a named extension point: it needs Ascend's NPU runtime (torch_npu and "
            "its transfer kernels), which this build does not have. Use 'kernel' or 'direct'."
        )
    if io_backend == "direct" and not LAYOUTS[layout].whole_pages:
        whole = " or ".join(name for name, info in LAYOUTS.items() if info.whole_pages)
        raise ConfigError(
            f"io backend 'direct' copies whole pages of a layer, which layout {layout!r} does not keep together: "
            f"use layout {whole}, or io backend 'kernel'"
        )


def make_copier(host: HostPool, device: DevicePool, io_backend: str) -> Copier:
    """The copier for these pools. Raises ConfigError where their geometries differ or the io backend does not fit."""
    if host.geometry != device.geometry:
        raise ConfigError(f"the pools differ: host {host.geometry}, device {device.geometry}")
    check_io_backend(io_backend, host.layout)
    if device.byte_arrays() is not None:
        return CpuCopier(host, device)
    from hicache_core.transfer.cuda import staged_copier

    return staged_copier(host, device)
