"""Large pages go up in parts, small ones in one piece; the answer is the same."""

from hicache_core.types import IoContext, Outcome

MIB = 1 << 20


def parts_of(store, key):
    """How many parts an object was uploaded in: S3 says it in the ETag; 0 for one piece."""
    client = store.backend._store.client
    tag = client._obstore.head(client._store, store.backend._store.prefix + key)["e_tag"].strip('"')
    return int(tag.partition("-")[2] or 0)


def test_a_page_above_the_threshold_goes_up_in_parts(open_store):
    store = open_store(multipart_threshold=6 * MIB, multipart_chunk=5 * MIB)
    data = bytes(range(256)) * (12 * MIB // 256)
    key = store.key(1)
    assert store.set(key, value=data) == [Outcome.STORED]
    assert parts_of(store, key) == 3
    assert store.get(key, len(data)) == (Outcome.HIT, data)
    assert store.set(key, value=data) == [Outcome.EXISTS]
    assert store.set(key, value=data[::-1], replace=True) == [Outcome.STORED]
    assert store.get(key, len(data)) == (Outcome.HIT, data[::-1])


def test_a_page_up_to_the_threshold_is_one_piece_and_one_condition(open_store):
    store = open_store(multipart_threshold=6 * MIB, multipart_chunk=5 * MIB)
    page = [memoryview(bytes(6 * MIB))]
    assert store.backend.batch_set([store.key(1)], [page], IoContext()) == [Outcome.STORED]
    assert parts_of(store, store.key(1)) == 0
    assert store.backend.batch_set([store.key(1)], [page], IoContext(replace=True)) == [Outcome.STORED]
    assert parts_of(store, store.key(1)) == 0


def test_a_batch_of_large_pages(open_store):
    store = open_store(multipart_threshold=5 * MIB, multipart_chunk=5 * MIB)
    keys = [store.key(n) for n in range(4)]
    assert store.set(*keys, value=b"x" * 7 * MIB) == [Outcome.STORED] * 4
    assert store.exists(*keys) == 4
    assert store.get(keys[3], 7 * MIB) == (Outcome.HIT, b"x" * 7 * MIB)
