"""Plugin OBJ: pages as S3 objects. NIXL writes an object from one stretch of memory, so pages are staged."""

from __future__ import annotations

import http.client
import itertools
import os
import ssl
import struct
from collections.abc import Sequence
from contextlib import closing
from urllib.parse import SplitResult, urlsplit

import numpy as np

from hicache_core.errors import OpenError, OptionError
from hicache_core.storage.contiguous import Arenas, ContiguousBackend, Stored
from hicache_core.storage.lent_memory import address_of
from hicache_core.storage.seals import aligned_memory
from hicache_core.types import IoContext, Outcome
from hicache_nixl.agents import Agent, Agents, NixlError
from hicache_nixl.options import HEADER_BYTES, NixlOptions

HEADER = struct.Struct("<8sQ")
MAGIC = b"HICNIXL\1"
ANSWER_SECONDS = 3.0
_ANOTHER_LENGTH = -1
assert HEADER.size == HEADER_BYTES


def open_objects(options: NixlOptions) -> ContiguousBackend:
    """A backend on the bucket that the options name. Raises OptionError and OpenError, with the mend."""
    if options.bucket is None:
        raise OptionError("backend 'nixl' with plugin OBJ needs option bucket")
    told = parameters(options)
    _check_address(options)
    agents = Agents(options.agents, "OBJ", told)
    try:
        size = options.bounce_size // options.agents // 4096 * 4096
        memories = [aligned_memory(size) for _ in range(options.agents)]
        for memory in memories:
            agents.register((address_of(memory), size), "bounce memory")
        client = ObjectClient(agents, options.prefix)
        _check(client, memories[0], options)
    except BaseException:
        agents.close()
        raise
    return ContiguousBackend(client, Arenas(memories))


def parameters(options: NixlOptions) -> dict[str, str]:
    """What NIXL's OBJ plugin is told. Raises OptionError where credentials are missing."""
    access = options.access_key_id or os.environ.get("AWS_ACCESS_KEY_ID")
    secret = options.secret_access_key or os.environ.get("AWS_SECRET_ACCESS_KEY")
    if not access or not secret:
        raise OptionError(
            "backend 'nixl' with plugin OBJ needs credentials: options access_key_id and secret_access_key, or "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment"
        )
    told = {
        "access_key": access,
        "secret_key": secret,
        "bucket": options.bucket or "",
        "region": options.region,
        "use_virtual_addressing": str(options.virtual_addressing).lower(),
        "req_checksum": "required",
    }
    if options.endpoint is not None:
        scheme, _, host = options.endpoint.rpartition("://")
        told |= {"endpoint_override": host, "scheme": scheme or "https"}
    return told


def _check_address(options: NixlOptions) -> None:
    """Ask for any answer at all: NIXL's own client would go on trying for minutes. Raises OpenError."""
    if options.endpoint is None:
        return
    parts = urlsplit(options.endpoint if "://" in options.endpoint else f"https://{options.endpoint}")
    try:
        with closing(_connection(parts)) as connection:
            connection.request("HEAD", "/")
            connection.getresponse()
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise OpenError(
            f"no S3 server answers at endpoint {options.endpoint}: {error}; check the address, and that it runs"
        ) from error


def _connection(parts: SplitResult) -> http.client.HTTPConnection:
    host = parts.hostname or ""
    if parts.scheme == "http":
        return http.client.HTTPConnection(host, parts.port, timeout=ANSWER_SECONDS)
    unverified = ssl.create_default_context()  # nothing is told or believed here: NIXL's client looks who it is
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    return http.client.HTTPSConnection(host, parts.port, timeout=ANSWER_SECONDS, context=unverified)


def _check(client: ObjectClient, memory: memoryview, options: NixlOptions) -> None:
    """Write an object of no page and read it back: what is wrong is found now."""
    name, ctx = "+hicache/opened", IoContext()
    whole = memory[: HEADER_BYTES + 8]
    stored = client.put([name], [whole], ctx)
    if stored != [Outcome.STORED] or client.get([name], [whole], ctx) != [8]:
        at = options.endpoint or f"AWS, region {options.region}"
        raise OpenError(
            f"bucket {options.bucket!r} at {at} took no object: check that the server answers, that the bucket is "
            f"there, and the credentials ({client.last_error})"
        )


class ObjectClient:
    """A `ContiguousClient`."""

    header_bytes = HEADER_BYTES

    def __init__(self, agents: Agents, prefix: str) -> None:
        self._agents, self._prefix = agents, prefix
        self._numbers = itertools.count(1)
        self.last_error = ""

    def exists(self, keys: Sequence[str], ctx: IoContext) -> list[bool]:
        """See ContiguousClient."""
        if not keys:
            return []
        with self._agents.one(ctx.deadline) as agent:
            if agent is None:
                raise NixlError("no NIXL agent was free in time")
            return self._there(agent, keys)

    def put(self, keys: Sequence[str], objects: Sequence[memoryview], ctx: IoContext) -> list[Outcome]:
        """See ContiguousClient. Of a batch that failed as a whole, each page is tried alone."""
        for whole in objects:
            HEADER.pack_into(whole, 0, MAGIC, whole.nbytes - HEADER_BYTES)
        with self._agents.one(ctx.deadline) as agent:
            if agent is None:
                return [Outcome.TIMEOUT] * len(keys)
            if self._moved(agent, "WRITE", keys, objects):
                return [Outcome.STORED] * len(keys)
            alone = [self._moved(agent, "WRITE", [key], [one]) for key, one in zip(keys, objects, strict=True)]
        return [Outcome.STORED if one else Outcome.UNAVAILABLE for one in alone]

    def get(self, keys: Sequence[str], objects: Sequence[memoryview], ctx: IoContext) -> list[Stored]:
        """See ContiguousClient. Asks first: one object that is missing would fail the whole transfer."""
        with self._agents.one(ctx.deadline) as agent:
            if agent is None:
                return [Outcome.TIMEOUT] * len(keys)
            there = [index for index, one in enumerate(self._there(agent, keys)) if one]
            answers: list[Stored] = [Outcome.MISS] * len(keys)
            some = [keys[index] for index in there], [objects[index] for index in there]
            if there and self._moved(agent, "READ", *some):
                for index in there:
                    answers[index] = _length(objects[index])
                return answers
            for index in there:
                answers[index] = self._alone(agent, keys[index], objects[index])
            return answers

    def close(self) -> None:
        """See ContiguousClient."""
        self._agents.close()

    # parts

    def _alone(self, agent: Agent, key: str, whole: memoryview) -> Stored:
        """One object by itself: the one that failed the batch is shorter than it should be, or gone meanwhile."""
        if self._moved(agent, "READ", [key], [whole]):
            return _length(whole)
        return _ANOTHER_LENGTH if self._there(agent, [key])[0] else Outcome.MISS

    def _moved(self, agent: Agent, operation: str, keys: Sequence[str], objects: Sequence[memoryview]) -> bool:
        numbers = [next(self._numbers) for _ in keys]
        local = [(address_of(whole), whole.nbytes, 0) for whole in objects]
        remote = [(0, whole.nbytes, number) for whole, number in zip(objects, numbers, strict=True)]
        targets = [
            (0, whole.nbytes, number, self._prefix + key)
            for key, whole, number in zip(keys, objects, numbers, strict=True)
        ]
        try:
            agent.move(operation, np.array(local, np.uint64), "OBJ", targets, np.array(remote, np.uint64))
        except NixlError as error:
            self.last_error = str(error)
            return False
        return True

    def _there(self, agent: Agent, keys: Sequence[str]) -> list[bool]:
        return agent.query([(0, 0, 0, self._prefix + key) for key in keys], "OBJ")


def _length(whole: memoryview) -> int:
    magic, length = HEADER.unpack_from(whole)
    return int(length) if magic == MAGIC else _ANOTHER_LENGTH
