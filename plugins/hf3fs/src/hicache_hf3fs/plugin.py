"""The entry point of backend `hf3fs`."""

from __future__ import annotations

from hicache_core.plugin.spec import hookimpl
from hicache_core.types import BackendSpec
from hicache_hf3fs.options import Hf3fsOptions, capabilities


@hookimpl
def hicache_backend() -> BackendSpec:
    """The description of backend `hf3fs`.

    It names no SDK as required: without `hf3fs_py_usrbio` the same files are read and written on the mounted path.
    """
    return BackendSpec(
        name="hf3fs",
        description="page slots in large files on 3FS (USRBIO where it is there) or any mounted path, with an index",
        options=Hf3fsOptions,
        factory="hicache_hf3fs.backend:open_hf3fs",
        capabilities=capabilities,
        probe="hicache_hf3fs.probe:probe",
    )
