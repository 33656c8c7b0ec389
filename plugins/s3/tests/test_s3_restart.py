"""The server is killed under an open store: no hang, no wrong page, and it goes on when the server is back."""

import pytest
from hicache_s3.dev_server import INSTALL, dev_server, find_weed

from hicache_core.errors import StorageError
from hicache_core.types import IoContext, Outcome


@pytest.fixture
def own_server(tmp_path):
    if find_weed() is None:
        pytest.skip(f"no S3 server here: {INSTALL}")
    with dev_server(tmp_path) as server:
        yield server


def test_a_killed_server_costs_misses_and_loses_nothing_acknowledged(own_server, open_at):
    store = open_at(**own_server.options)
    keys = [store.key(n) for n in range(128)]
    assert store.set(*keys) == [Outcome.STORED] * 128
    own_server.kill()
    with pytest.raises(StorageError):
        store.exists(*keys)
    pages = [[memoryview(bytearray(1064))] for _ in keys]
    assert store.backend.batch_get(keys, pages, IoContext()) == [Outcome.UNAVAILABLE] * 128
    assert store.set(store.key(500)) == [Outcome.UNAVAILABLE]
    own_server.restart()
    assert store.exists(*keys) == 128
    assert [store.get(key) for key in keys] == [(Outcome.HIT, b"v" * 1000)] * 128
    assert store.set(*keys[:3], store.key(500)) == [Outcome.EXISTS] * 3 + [Outcome.STORED]


def test_a_server_killed_in_the_middle_of_a_set_holds_whole_pages_only(own_server, open_at):
    import threading

    store = open_at(**own_server.options, concurrency=8)
    size = 300_000
    keys = [store.key(n) for n in range(200)]
    begun, outcomes = threading.Event(), {}

    def write():
        for start in range(0, len(keys), 8):
            some = keys[start : start + 8]
            outcomes.update(zip(some, store.set(*some, value=b"v" * size), strict=True))
            if start == 40:
                begun.set()

    writer = threading.Thread(target=write)
    writer.start()
    assert begun.wait(60)
    own_server.kill()
    writer.join(120)
    assert not writer.is_alive()
    assert Outcome.UNAVAILABLE in outcomes.values()
    own_server.restart()
    for key, outcome in outcomes.items():
        found, data = store.get(key, size)
        assert found in ((Outcome.HIT,) if outcome else (Outcome.HIT, Outcome.MISS))
        assert data == (b"v" * size if found else bytes(size))
