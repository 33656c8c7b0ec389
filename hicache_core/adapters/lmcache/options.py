"""Options of the two doors into LMCache, beside those that every door has."""

from __future__ import annotations

import threading
from typing import Annotated

import msgspec
from msgspec import Meta

from hicache_core.adapters.door_options import LendingDoorOptions
from hicache_core.errors import ConfigError, IdentityError
from hicache_core.namespace import WEIGHTS_FORMS
from hicache_core.plugin.options import ByteSize


class ConnectorOptions(LendingDoorOptions, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Options of the remote connector."""


class L2Options(ConnectorOptions, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Options of the L2 adapter. One adapter may serve several models; each needs weights to its name."""

    models: Annotated[
        dict[str, str],
        Meta(description="several models: the name that engines use, and its weights (declared:…) or folder"),
    ] = msgspec.field(default_factory=dict)
    capacity: Annotated[
        ByteSize,
        Meta(description="what LMCache takes for the store's size, if it is to evict; 0: the store does", ge=0),
    ] = 0


class Models:
    """Which weights stand behind a model's name. Raises IdentityError where the options do not say it.

    Without `models` the options describe one model: that of the name `model`, or else the first that comes.
    """

    def __init__(self, options: L2Options, where: str) -> None:
        self._weights: dict[str, str] = {}
        self.single = ""
        """The weights, where there is one model."""
        self._binding = threading.Lock()
        if options.models:
            if options.weights or options.model_path or options.model:
                raise ConfigError(
                    f"{where}: models stands beside weights, model_path or model, which speak of one model; give "
                    f"either one model or several"
                )
            for name, told in options.models.items():
                self._weights[name] = _weights_of(told, options, f"{where}: models[{name!r}]")
            return
        if not options.weights and not options.model_path:
            raise IdentityError(
                f"{where}: nothing says which weights compute the pages, since LMCache tells a server only the names "
                f'of models, and pages of other weights would be taken for these. Add "model_path": '
                f'"/folder/of/safetensors" or "weights": "declared:NAME-AND-REVISION"; for several models "models": '
                f'{{"NAME": "/folder or declared:…"}}'
            )
        self.single = options.weights_of(options.model_path, where)
        if options.model:
            self._weights[options.model] = self.single

    def weights_of(self, name: str) -> str | None:
        """None for a model that the options do not speak of."""
        if self.single and not self._weights:
            with self._binding:
                if not self._weights:
                    self._weights[name] = self.single
        return self._weights.get(name)

    def listed(self) -> str:
        """The names that are served, for a message."""
        return ", ".join(map(repr, self._weights)) or "none yet"


def _weights_of(told: str, options: L2Options, where: str) -> str:
    if told.startswith(WEIGHTS_FORMS):
        return told
    return type(options)(model_path=told or "(no folder given)").weights_of(told, where)
