"""Opening a session: choose, identify, open, check, wire."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from hicache_core.clock import Clock, monotonic
from hicache_core.errors import ConfigError, HiCacheError, OpenError
from hicache_core.namespace import Identity
from hicache_core.plugin.extensions import resolve
from hicache_core.plugin.redaction import hider
from hicache_core.plugin.select import BackendChoice, choose_backend, open_backend
from hicache_core.plugin.spec import OBSERVER_GROUP, TRANSFORM_GROUP
from hicache_core.seal import MAC, SEAL_BYTES, SEAL_VERSION, XXH3, Sealer, mac_key_id
from hicache_core.storage.binding import HookBinding
from hicache_core.storage.breaker import Breaker
from hicache_core.storage.calls import StoreCalls
from hicache_core.storage.damage import Damage
from hicache_core.storage.dispatch import Dispatch
from hicache_core.storage.guard import Guard
from hicache_core.storage.ledger import StorageLedger
from hicache_core.storage.parts import Parts
from hicache_core.storage.placing import check_cpus
from hicache_core.storage.queries import Query
from hicache_core.storage.reading import Reader
from hicache_core.storage.seals import SealRing
from hicache_core.storage.session import StorageSession
from hicache_core.storage.settings import SessionSettings
from hicache_core.storage.staging import Staging
from hicache_core.storage.transforms import Transform, TransformChain
from hicache_core.storage.workers import REPLACEMENTS, DeadlineKeeper, Direction, WorkerGroup
from hicache_core.storage.writing import Writer
from hicache_core.types import Capabilities, OpenContext

_log = logging.getLogger(__name__)


def open_session(
    backend: str | Mapping[str, Any] | BackendChoice,
    *,
    identity: Identity,
    options: Mapping[str, Any] | None = None,
    settings: SessionSettings | None = None,
    transforms: Sequence[Transform | str | Mapping[str, Any]] = (),
    observers: Sequence[object] = (),
    clock: Clock = monotonic,
    strict_options: bool = True,
    rank: int = 0,
    world_size: int = 1,
) -> StorageSession:
    """Open a store.

    backend: a name, a URL, `{"backend": …, "options": {…}}` or a choice made before. identity: what the bytes
    depend on; seal, transforms and tenant are filled in from here. transforms, observers: objects, names of the
    groups `hicache.transforms` and `hicache.observers`, or `{"name": …, "options": {…}}`. strict_options: False
    where option values are text. Raises ConfigError and PluginError and their kinds, and OpenError; whatever was
    opened is closed then.
    """
    settings = settings or SessionSettings()
    check_cpus(settings.worker_cpus)
    choice = choose_backend(backend, options, strict=strict_options)
    declared = choice.capabilities
    chain = TransformChain(resolve(TRANSFORM_GROUP, "transform", transforms), declared)
    observers = resolve(OBSERVER_GROUP, "observer", observers)
    full = session_identity(identity, settings, declared, chain)
    namespace = full.namespace()
    ctx = OpenContext(namespace, full.tenant, full.seal_stride, rank, world_size)
    opened = open_backend(choice, ctx)
    try:
        narrowed = getattr(opened, "capabilities", None)
        capabilities = narrowed if isinstance(narrowed, Capabilities) else declared
        if chain.variable and not capabilities.variable_length:
            raise ConfigError(f"backend {choice.spec.name!r} opened without variable_length, which a transform needs")
        ledger = StorageLedger(hider(choice.options))
        name = choice.spec.name
        return StorageSession(_wire(name, opened, full, capabilities, settings, chain, observers, clock, ledger))
    except BaseException:
        _close_again(choice.spec.name, opened)
        raise


def _close_again(name: str, opened: object) -> None:
    """Close a backend whose session could not be made; the error under way is the one to be told."""
    try:
        HookBinding(opened).call("close")
    except Exception:  # noqa: BLE001 - it is logged, and the first error goes on
        _log.exception("backend %r raised when it was closed after a failed opening", name)


def session_identity(
    identity: Identity, settings: SessionSettings, capabilities: Capabilities, chain: TransformChain
) -> Identity:
    """The identity with everything that the session adds. Raises ConfigError for two different tenants."""
    if settings.tenant and identity.tenant and settings.tenant != identity.tenant:
        raise ConfigError(f"tenant {settings.tenant!r} in the settings, {identity.tenant!r} in the identity")
    changes: dict[str, Any] = {"tenant": settings.tenant or identity.tenant, "transforms": chain.identity}
    if not settings.seal:
        changes |= {"seal_algorithm": 0, "seal_stride": 0, "seal_key_id": ""}
    else:
        changes |= {
            "seal_version": SEAL_VERSION,
            "seal_algorithm": MAC if settings.mac_key else XXH3,
            "seal_stride": -(-SEAL_BYTES // capabilities.alignment) * capabilities.alignment,
            "seal_key_id": mac_key_id(settings.mac_key) if settings.mac_key else "",
        }
    return identity.replace(**changes)


def _wire(
    name: str,
    opened: object,
    identity: Identity,
    capabilities: Capabilities,
    settings: SessionSettings,
    chain: TransformChain,
    observers: Sequence[object],
    clock: Clock,
    ledger: StorageLedger,
) -> Parts:
    dispatch = Dispatch(opened, ledger=ledger, observers=observers)
    schema = identity.key_schema()
    sealer = None
    if settings.seal:
        sealer = Sealer(schema.namespace, identity.seal_stride, identity.seal_algorithm, settings.mac_key or None)
    breakers = {direction: Breaker(clock) for direction in Direction}
    damage = Damage(clock)
    guard = Guard(dispatch, ledger, damage, capabilities, sealer, chain, settings.heal, breakers[Direction.READ])
    counts = {Direction.READ: settings.read_workers, Direction.WRITE: settings.write_workers, Direction.ADMIN: 1}
    thread_name = f"hicache-{name}"
    cpus = settings.worker_cpus
    groups = {d: WorkerGroup(d, counts[d], breakers[d], ledger, thread_name, cpus) for d in Direction}
    registers = capabilities.registration == "region"
    io = (Direction.READ, Direction.WRITE)
    calls = {d: StoreCalls(breakers[d], ledger) for d in io}
    rings = {d: SealRing(counts[d] + REPLACEMENTS, identity.seal_stride) for d in io} if sealer else {}
    stagings = {d: _staging(dispatch, counts[d] + REPLACEMENTS, settings, capabilities, registers) for d in io}
    for ring in rings.values():
        if registers:
            _register(dispatch, name, ring.memory)
    return Parts(
        name=name,
        identity=identity,
        schema=schema,
        settings=settings,
        clock=clock,
        ledger=ledger,
        guard=guard,
        query=Query(guard, calls[Direction.READ]),
        reader=Reader(guard, calls[Direction.READ], rings.get(Direction.READ), stagings[Direction.READ]),
        writer=Writer(guard, calls[Direction.WRITE], rings.get(Direction.WRITE), stagings[Direction.WRITE]),
        read_group=groups[Direction.READ],
        write_group=groups[Direction.WRITE],
        admin_group=groups[Direction.ADMIN],
        keeper=DeadlineKeeper(clock, thread_name),
        rings=list(rings.values()),
        stagings=list(stagings.values()),
    )


def _staging(
    dispatch: Dispatch, blocks: int, settings: SessionSettings, capabilities: Capabilities, registers: bool
) -> Staging:
    def register(buffer: memoryview) -> None:
        if registers:
            dispatch.call("register_region", buffer=buffer)

    def unregister(buffer: memoryview) -> None:
        if registers:
            dispatch.call("unregister_region", buffer=buffer)

    return Staging(blocks, settings.stage_bytes, capabilities.alignment, register, unregister)


def _register(dispatch: Dispatch, name: str, memory: memoryview) -> None:
    try:
        dispatch.call("register_region", buffer=memory)
    except HiCacheError:
        raise
    except Exception as error:
        raise OpenError(f"store {name!r} refused to register {memory.nbytes} bytes for seals: {error}") from error
