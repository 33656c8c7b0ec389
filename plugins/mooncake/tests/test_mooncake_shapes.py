"""The other shapes of a store: standalone storage, spilling to SSD, registered memory only; and the dev server."""

import numpy as np
import pytest
from hicache_mooncake.backdoor import MooncakeKit
from hicache_mooncake.bounce import ARENAS, Bounce
from hicache_mooncake.dev_server import owner_addresses
from hicache_mooncake.objects import of_pages
from hicache_mooncake.options import MooncakeOptions

from hicache_core.plugin.dev_servers import make_dev_server
from hicache_core.pools.geometry import KVGeometry
from hicache_core.pools.host import make_host_pool
from hicache_core.pools.layouts import layout_named, pool_nbytes
from hicache_core.storage.lent_memory import address_of
from hicache_core.types import IoContext, Outcome

HIT, STORED, REJECTED = Outcome.HIT, Outcome.STORED, Outcome.REJECTED


def test_standalone_storage(serve, connect):
    server = serve(segment_bytes=128 << 20)
    [client] = owner_addresses(server)
    handle = connect(**server.options, standalone_address=client)
    [plain] = handle.keys(1)
    assert handle.set([plain], 6) == [STORED]  # memory that the standalone client does not see
    assert handle.get(plain) == (HIT, {6})
    geometry = KVGeometry("mha", 2, 2, 64, page_size=64)
    nbytes = pool_nbytes(geometry, layout_named("page_first"), 4)
    memory = handle.backend.allocate_host_memory(nbytes, 4096)
    assert (memory.nbytes, address_of(memory) % 4096) == (nbytes, 0)
    pool = make_host_pool(geometry, "page_first", 4, memory=memory)
    handle.backend.register_host_pool(pool)
    assert handle.backend.stats().registered_bytes >= nbytes
    pool.buffer[:] = 5
    seals = [memoryview(bytearray(b"s" * 64))]
    keys = handle.keys(1)
    assert handle.backend.batch_set_v1(keys, np.array([3]), IoContext(seals=seals)) == [STORED]
    pool.buffer[:] = 0xAA
    seals[0][:] = bytes(64)
    assert handle.backend.batch_get_v1(keys, np.array([0]), IoContext(seals=seals)) == [HIT]
    assert set(pool.get_data_page(0)) == {5}
    assert bytes(seals[0]) == b"s" * 64
    assert connect(**server.options).get(plain) == (HIT, {6})  # and any other client sees the pages


def test_without_standalone_storage_nothing_is_allocated(connect):
    assert connect().backend.allocate_host_memory(4096, 64) is None


def test_spilling_to_ssd(serve, connect, tmp_path):
    server = serve(owners=0, segment_bytes=64 << 20, master_flags=("--enable_offload=true",), lease_milliseconds=100)
    handle = connect(**server.options, ssd_offload_path=str(tmp_path / "ssd"), ssd_buffer_size=64 << 20)
    keys = handle.keys(12)
    assert handle.set(keys, 3, 1 << 20) == [STORED] * 12
    assert all(handle.get(key, 1 << 20) == (HIT, {3}) for key in keys)
    assert (tmp_path / "ssd").is_dir()


class TestBounce:
    """Memory that the SDK would refuse, played on plain memory."""

    def bounce(self, covers=lambda ptr, size: False, nbytes=ARENAS * 4096):
        self.arena = np.zeros(nbytes, np.uint8)
        return Bounce((self.arena.ctypes.data, nbytes), covers)

    def inside(self, ptr, size):
        start = self.arena.ctypes.data
        return start <= ptr and ptr + size <= start + self.arena.nbytes

    def test_parts_go_through_it_in_as_many_calls_as_it_takes(self):
        bounce = self.bounce()
        pages = [[memoryview(bytearray([n] * 1000)), memoryview(bytearray([n] * 24))] for n in range(9)]
        calls = []

        def move(lo, hi, part):
            assert all(
                self.inside(*pair)
                for row in zip(part.ptrs, part.sizes, strict=True)
                for pair in zip(*row, strict=True)
            )
            calls.append((lo, hi))
            return [STORED] * (hi - lo)

        assert bounce.run(of_pages(pages), None, move, reading=False) == [STORED] * 9
        assert calls == [(0, 3), (3, 6), (6, 9)]

    def test_only_hits_are_copied_back(self):
        bounce = self.bounce()
        pages = [[memoryview(bytearray(10))] for _ in range(2)]

        def move(lo, hi, part):
            self.arena[:] = 7
            return [HIT, Outcome.MISS]

        assert bounce.run(of_pages(pages), None, move, reading=True) == [HIT, Outcome.MISS]
        assert [bytes(page[0]) for page in pages] == [b"\7" * 10, bytes(10)]

    def test_a_page_larger_than_an_arena_is_rejected_alone(self):
        bounce = self.bounce()
        pages = [[memoryview(bytearray(size))] for size in (10, 5000, 10)]
        outcomes = bounce.run(of_pages(pages), None, lambda lo, hi, part: [STORED] * (hi - lo), reading=False)
        assert outcomes == [STORED, REJECTED, STORED]

    def test_no_arena_in_time_is_a_timeout(self):
        bounce = self.bounce()
        pages = [[memoryview(bytearray(10))]]
        inner = []

        def move(lo, hi, part):
            if len(inner) < ARENAS:
                inner.append(None)
                return bounce.run(of_pages(pages), 0.0, move, reading=False)
            return [STORED]

        assert bounce.run(of_pages(pages), None, move, reading=False) == [Outcome.TIMEOUT]


def test_the_dev_server_and_the_back_door(tmp_path, connect):
    kit = MooncakeKit()
    with make_dev_server("mooncake", tmp_path) as server:
        handle = connect(**server.options)
        [key] = handle.keys(1)
        door = kit.back_door(handle.backend, MooncakeOptions(**server.options))
        try:
            assert door.raw_get(key) is None
            handle.set([key], 2)
            assert door.raw_get(key) == bytes([2]) * 4160
            assert key in door.raw_list()
            door.raw_set(key, b"x" * 4160)
            assert handle.get(key) == (HIT, {ord("x")})
            assert door.raw_delete(key)
            assert not door.raw_delete(key)
            server.kill()
            server.restart()
            assert door.raw_list() == []
        finally:
            kit.close()


@pytest.mark.parametrize("owners", [0, 1])
def test_a_kit_makes_a_fresh_store_after_it_was_closed(owners, tmp_path):
    kit = MooncakeKit()
    try:
        first = kit.throwaway(tmp_path)
        assert kit.throwaway(tmp_path) == first
        kit.kill_store()
        kit.restart_store()
    finally:
        kit.close()
