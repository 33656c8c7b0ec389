"""Settings of a storage session, and what it says of itself."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from hicache_core.plugin.redaction import redact
from hicache_core.storage.breaker import BreakerStatus
from hicache_core.storage.damage import DamageStatus
from hicache_core.types import Capabilities

MOST_WORKERS = 1024
"""I/O threads per direction: each has staging memory of its own; a hundred thousand would stop the machine."""


class SessionSettings(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """How a session treats its store."""

    timeout: Annotated[float, Meta(description="seconds, deadline of one operation", gt=0)] = 10.0
    read_workers: Annotated[int, Meta(description="I/O threads for exists and get", ge=1, le=MOST_WORKERS)] = 2
    write_workers: Annotated[int, Meta(description="I/O threads for set", ge=1, le=MOST_WORKERS)] = 2
    worker_cpus: Annotated[
        tuple[Annotated[int, Meta(ge=0)], ...],
        Meta(description="CPUs for the I/O threads of each direction, in turn; empty: the system chooses"),
    ] = ()
    stage_bytes: Annotated[int, Meta(description="memory per I/O thread for pages that cannot go straight", ge=0)] = (
        8 << 20
    )
    seal: Annotated[bool, Meta(description="seal pages, and verify them when read")] = True
    mac_key: Annotated[bytes, Meta(description="key for seals that no one can forge; empty: xxh3 seals")] = b""
    tenant: Annotated[str, Meta(description="tenant of the deployment; part of the namespace")] = ""
    heal: Annotated[bool, Meta(description="replace damaged pages when they are written again")] = True
    lent_pools: Annotated[bool, Meta(description="host pools belong to another engine and cannot be quarantined")] = (
        False
    )

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in redact(self).items())
        return f"{type(self).__name__}({shown})"

    def __post_init__(self) -> None:
        few, many = sorted((self.read_workers, self.write_workers))
        if not self.timeout > 0 or few < 1 or many > MOST_WORKERS or self.stage_bytes < 0:
            raise ValueError(
                f"timeout {self.timeout} must be positive, workers {self.read_workers}/{self.write_workers} from 1 "
                f"to {MOST_WORKERS}, stage_bytes {self.stage_bytes} at least 0"
            )


class SessionStatus(msgspec.Struct, frozen=True):
    """A session at one moment. breakers: by direction. running: calls inside the store now, by direction."""

    backend: str
    namespace: str
    closed: bool
    healthy: bool
    breakers: dict[str, BreakerStatus]
    running: dict[str, int]
    threads: int
    damage: DamageStatus
    staged_bytes: int
    capabilities: Capabilities
    recent_errors: list[str]
    problems: list[str]
    """What a person should know, in sentences; empty where all is well."""


class CloseReport(msgspec.Struct, frozen=True):
    """How a session ended. abandoned: calls that had not returned. errors: what unregistering and close raised."""

    abandoned: int = 0
    errors: list[str] = []

    @property
    def clean(self) -> bool:
        """Whether nothing was left behind."""
        return not self.abandoned and not self.errors
