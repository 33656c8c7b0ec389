"""A store whose server can die: a dict behind a door that a kit opens and shuts. And some that die badly."""

from __future__ import annotations

import threading

import msgspec
from sound_backend import DictDoor, Sound, spec_of

from hicache_core.plugin.spec import hookimpl
from hicache_core.types import Outcome


class Server:
    """What the backends of one kit talk to. `disk` survives a kill, `memory` does not."""

    def __init__(self):
        self.up, self.disk, self.lives, self.lock = True, {}, 0, threading.Lock()


class Mortal(Sound):
    """Every page is on the server's disk when set answers; a dead server raises."""

    capabilities = msgspec.structs.replace(Sound.capabilities, durable=True)
    server: Server

    def __init__(self, options, context):
        super().__init__(options, context)
        self.pages, self.lock, self.life = self.server.disk, self.server.lock, self.server.lives

    def connected(self):
        if not self.server.up:
            raise ConnectionRefusedError("no server")

    @hookimpl
    def batch_exists(self, keys, ctx):
        self.connected()
        return Sound.batch_exists(self, keys, ctx)

    @hookimpl
    def batch_get(self, keys, pages, ctx):
        self.connected()
        return Sound.batch_get(self, keys, pages, ctx)

    @hookimpl
    def batch_set(self, keys, pages, ctx):
        self.connected()
        return Sound.batch_set(self, keys, pages, ctx)


class AnswersFromTheCache(Mortal):
    """The server answers before its disk has the page: what came last is lost when it dies."""

    caught_by = "acknowledged_pages_survive_the_death_of_the_server"

    def set(self, key, page, ctx):
        outcome = Mortal.set(self, key, page, ctx)
        self.server.unwritten = [*getattr(self.server, "unwritten", [])[-3:], key]
        return outcome

    @classmethod
    def dies(cls, server):
        for key in getattr(server, "unwritten", []):
            server.disk.pop(key, None)


class TearsWhenItDies(Mortal):
    """The page that was being written when the server died is there by half."""

    caught_by = "acknowledged_pages_survive_the_death_of_the_server"

    @classmethod
    def dies(cls, server):
        last = next(reversed(server.disk), None)
        if last is not None:
            half = len(server.disk[last]) // 2
            server.disk[last] = server.disk[last][:half] + bytes(len(server.disk[last]) - half)


class NeverReconnects(Mortal):
    """A client that has lost its server stays lost."""

    caught_by = "a_dead_server_costs_misses_and_is_found_again"

    def connected(self):
        if self.server.lives != self.life:
            raise ConnectionResetError("the connection is gone")
        Mortal.connected(self)


class SaysStoredToNobody(Mortal):
    """A set that no server took is answered STORED."""

    caught_by = "a_dead_server_costs_misses_and_is_found_again"

    @hookimpl
    def batch_set(self, keys, pages, ctx):
        return Sound.batch_set(self, keys, pages, ctx) if self.server.up else [Outcome.STORED] * len(keys)


class HangsWithoutAServer(Mortal):
    """A call to a dead server waits for it, and goes on waiting when it is back."""

    caught_by = "a_dead_server_costs_misses_and_is_found_again"

    def connected(self):
        if not self.server.up or self.server.lives != self.life:
            threading.Event().wait(6)


class MortalKit:
    """Kills and restarts the server of one backend class."""

    def __init__(self, backend):
        self.backend = backend

    def throwaway(self, directory):
        self.server = self.backend.server = Server()
        return {}

    def back_door(self, backend, options):
        return DictDoor(backend, options)

    def kill_store(self):
        self.server.up = False
        getattr(self.backend, "dies", lambda server: None)(self.server)

    def restart_store(self):
        self.server.up, self.server.lives = True, self.server.lives + 1


def spec(backend):
    """The spec of a mortal backend."""
    return spec_of(backend)
