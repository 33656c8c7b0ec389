"""What is under test: a backend, by name or by spec, and the options that open it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hicache_conformance.backdoor import BackDoor, StoreKit, fake_reason, find_kit, throwaway_options
from hicache_core.plugin.options import parse_options
from hicache_core.plugin.select import choose_backend
from hicache_core.types import BackendSpec, Capabilities

if TYPE_CHECKING:
    import msgspec


@dataclass(frozen=True)
class Target:
    """A backend to prove.

    backend: the name of an installed one, a URL, or a `BackendSpec`. options: as in a config file. strict: False
    where the options are strings from a command line.
    spec_ref: `module:attribute` of a spec given as an object, so that child processes can open it too.
    back_door: (backend object, options struct) -> BackDoor, where none is registered.
    xfail: case id -> the author's reason why it fails. patience: seconds after which a call counts as hung.
    """

    backend: str | BackendSpec
    options: Mapping[str, Any] = field(default_factory=dict)
    strict: bool = True
    spec_ref: str | None = None
    back_door: Callable[[object, Any], BackDoor] | None = None
    xfail: Mapping[str, str] = field(default_factory=dict)
    patience: float = 30.0

    @property
    def name(self) -> str:
        """The backend's name."""
        return self.backend.partition("://")[0] if isinstance(self.backend, str) else self.backend.name

    @property
    def kit(self) -> StoreKit | None:
        """The registered kit of this backend, if there is one."""
        return find_kit(self.name)

    @property
    def throwaway(self) -> bool:
        """Whether the store is one that the kit makes: nothing was said about any other."""
        return not self.options and "://" not in str(self.backend) and self.kit is not None

    @property
    def fake(self) -> str:
        """Why this is not the real store, in the kit's words; empty where it is."""
        return fake_reason(self.kit) if self.throwaway else ""

    def resolve(self, directory: Path) -> Resolved:
        """The spec and its options. Options left out come from the kit: a throwaway store in `directory`.

        Raises ConfigError (with the nearest name) for an unknown backend or option.
        """
        kit = self.kit
        made = throwaway_options(kit, directory) if kit is not None and self.throwaway else {}
        options = {**made, **self.options}
        if isinstance(self.backend, str):
            choice = choose_backend(self.backend, options, strict=self.strict)
            return Resolved(choice.spec, choice.options, options)
        struct = parse_options(self.backend.options, options, where=f"options of {self.name}", strict=self.strict)
        return Resolved(self.backend, struct, options)


@dataclass(frozen=True)
class Resolved:
    """A target whose names were looked up."""

    spec: BackendSpec
    options: msgspec.Struct
    given: Mapping[str, Any]
    """The options as they can be sent to another process."""

    @property
    def capabilities(self) -> Capabilities:
        """What the spec declares under these options."""
        return self.spec.capabilities_for(self.options)
