"""What a user writes for hicache inside an engine's own configuration, whichever engine it is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from hicache_core.errors import ConfigError, IdentityError
from hicache_core.namespace import WEIGHTS_FORMS
from hicache_core.plugin.options import parse_options
from hicache_core.storage.settings import MOST_WORKERS, SessionSettings
from hicache_core.weights import sampled

T = TypeVar("T", bound="DoorOptions")


class DoorOptions(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The keys that every door understands. Doors with keys of their own derive from it."""

    backend: Annotated[str, Meta(description="name of a backend; see hicache backends list")] = ""
    options: Annotated[dict[str, Any], Meta(description="its options; see hicache backends show NAME")] = {}
    url: Annotated[str, Meta(description="backend and options as one URL, instead of the two")] = ""
    model: Annotated[str, Meta(description="id of the model; default: the engine's name for it")] = ""
    weights: Annotated[
        str, Meta(description="declared:NAME, sampled:HEX or full:HEX; default: sampled from the model's files")
    ] = ""
    model_path: Annotated[
        str, Meta(description="folder with the model's files; default: the model's name, where that is a folder")
    ] = ""
    tenant: Annotated[str, Meta(description="tenant of the deployment; part of every key's namespace")] = ""
    timeout: Annotated[float, Meta(description="seconds, deadline of one operation", gt=0)] = 10.0
    read_workers: Annotated[int, Meta(description="I/O threads for exists and get", ge=1, le=MOST_WORKERS)] = 4
    write_workers: Annotated[int, Meta(description="I/O threads for set", ge=1, le=MOST_WORKERS)] = 4
    worker_cpus: Annotated[
        tuple[Annotated[int, Meta(ge=0)], ...],
        Meta(description="CPUs for the I/O threads of each direction, in turn; empty: the system chooses"),
    ] = ()
    stage_bytes: Annotated[int, Meta(description="memory per I/O thread for pages that cannot go straight", ge=0)] = (
        8 << 20
    )
    mac_key_file: Annotated[
        str, Meta(description="file with the key (16 bytes or more) for seals that no one can forge")
    ] = ""
    heal: Annotated[bool, Meta(description="replace damaged pages when they are written again")] = True
    transforms: Annotated[list[str | dict[str, Any]], Meta(description="page transforms, in order")] = []
    observers: Annotated[list[str | dict[str, Any]], Meta(description="observers of the store's calls")] = []

    def choice(self, where: str) -> dict[str, Any]:
        """What `open_session` takes. Raises ConfigError unless exactly one of backend and url is given."""
        if bool(self.backend) == bool(self.url):
            which = "both backend and url are" if self.url else "neither backend nor url is"
            raise ConfigError(
                f'{where}: {which} given; write "backend": "file", "options": {{"root": "/var/cache/kv"}} '
                f'or "url": "file:///var/cache/kv"'
            )
        return {"url": self.url} if self.url else {"backend": self.backend, "options": self.options}

    def settings(self, where: str) -> SessionSettings:
        """Settings of the session. The pools are the engine's, so they are lent. ConfigError for a bad key file."""
        return SessionSettings(
            timeout=self.timeout,
            read_workers=self.read_workers,
            write_workers=self.write_workers,
            worker_cpus=self.worker_cpus,
            stage_bytes=self.stage_bytes,
            mac_key=_mac_key(self.mac_key_file, where),
            tenant=self.tenant,
            heal=self.heal,
            lent_pools=True,
        )

    def weights_of(self, model: str, where: str) -> str:
        """The weights identity: as given, else sampled from the model's files.

        model: the engine's name for it, which may be a folder; empty where it has none. Raises IdentityError where
        neither says which weights these are, ConfigError for files that cannot be read.
        """
        if self.weights:
            if not self.weights.startswith(WEIGHTS_FORMS):
                raise IdentityError(
                    f"{where}: weights {self.weights!r} does not say how it was made; write "
                    f'"weights": "declared:{self.weights}" if that name stands for one set of weights only'
                )
            return self.weights
        path = Path(self.model_path or model).expanduser()
        if self.model_path or (model and path.exists()):
            return sampled(path)
        which = f"the model {model!r} is no folder on this machine" if model else "the engine names no model"
        raise IdentityError(
            f"{where}: {which}, so nothing says which weights computed a "
            f'page, and pages of other weights would be taken for these. Add "model_path": "/folder/of/safetensors" '
            f'or "weights": "declared:NAME-AND-REVISION"'
        )


class LendingDoorOptions(DoorOptions, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The keys of doors that lend the engine's own memory to a store, which may hang with it."""

    hold: Annotated[
        float, Meta(description="seconds after its deadline that a store which hangs keeps the engine's memory", ge=0)
    ] = 30.0


def parse_door_options(type_: type[T], config: Mapping[str, Any], where: str) -> T:
    """Raises OptionError that names the key and the nearest good one, ConfigError where no store is named."""
    options = parse_options(type_, config, where=where)
    options.choice(where)
    return options


def _mac_key(file: str, where: str) -> bytes:
    if not file:
        return b""
    try:
        key = Path(file).expanduser().read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"{where}: mac_key_file {file!r} cannot be read: {error.strerror or error}") from error
    if not 16 <= len(key) <= 64:
        raise ConfigError(f"{where}: mac_key_file {file!r} holds {len(key)} bytes; a key has 16 to 64")
    return key
