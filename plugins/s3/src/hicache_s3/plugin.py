"""The entry point of backend `s3`."""

from __future__ import annotations

from hicache_core.plugin.spec import hookimpl
from hicache_core.types import BackendSpec, SdkRequirement
from hicache_s3.options import S3Options, capabilities


@hookimpl
def hicache_backend() -> BackendSpec:
    """The description of backend `s3`."""
    return BackendSpec(
        name="s3",
        description="one page per object in S3, GCS, Azure, or any file system that fsspec knows",
        options=S3Options,
        factory="hicache_s3.backend:open_s3",
        capabilities=capabilities,
        requires=(
            SdkRequirement("obstore", "pip install 'obstore>=0.12,<0.13'"),
            SdkRequirement("fsspec", "pip install 'fsspec>=2024.6'"),
        ),
        probe="hicache_s3.probe:probe",
        options_from_url="hicache_s3.options:options_from_url",
    )
