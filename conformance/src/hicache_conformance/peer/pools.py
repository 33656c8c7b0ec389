"""What a page's bytes depend on beside the tokens: the host pool's layout and element type."""

from __future__ import annotations

from typing import Any

from hicache_conformance.peer.casebook import peer_case
from hicache_conformance.peer.harness import PeerHarness
from hicache_conformance.verdict import CaseFailed, NotApplicable, Skipped
from hicache_core.adapters.sglang_backend.host_pool import make_pool
from hicache_core.adapters.sglang_backend.store import PeerStore
from hicache_core.errors import OpenError

_LAYERS, _TOKENS = 2, 4


def _pool(layout: str, dtype: Any) -> Any:
    try:
        return make_pool(layout=layout, dtype=dtype, layers=_LAYERS, heads=2, head_dim=8, page_size=_TOKENS, pages=4)
    except OpenError as error:
        raise Skipped(str(error)) from error


def _logical(pool: Any) -> Any:
    """K and V of the first page, [2, layer, token, head, dim], whatever the layout."""
    import torch

    page = [[_tokens(layer) for layer in side] for side in (pool.k_data_refs, pool.v_data_refs)]
    return torch.stack([torch.stack(layers) for layers in page])


def _tokens(layer: Any) -> Any:
    """The first tokens of a layer, which page_first_direct keeps page by page."""
    return layer.reshape(-1, *layer.shape[-2:])[:_TOKENS]


def _write(store: PeerStore, pool: Any, key: str) -> bool:
    if store.v1:
        return all(store.peer.batch_set_v1([key], _slots(pool)))
    return bool(store.peer.batch_set([key], [pool.get_data_page(0, flat=True)]))


def _read(store: PeerStore, pool: Any, key: str) -> bool:
    if store.v1:
        return bool(store.peer.batch_get_v1([key], _slots(pool))[0])
    page = store.peer.batch_get([key], [pool.get_dummy_flat_data_page()])[0]
    if page is None:
        return False
    pool.set_from_flat_data_page(0, page)
    return True


def _slots(pool: Any) -> Any:
    import torch

    return torch.arange(pool.page_size, dtype=torch.int64)


def _same_key(h: PeerHarness, first: tuple[str, Any], second: tuple[str, Any], what: str) -> None:
    """Fail where what was stored from one pool is a hit for the other, with other values in it."""
    import torch

    one, two = _pool(*first), _pool(*second)
    one.kv_buffer.copy_(torch.arange(one.kv_buffer.numel()).reshape(one.kv_buffer.shape) % 251)
    key = h.key(hash(what))
    writer = h.open(pool=one, layout=first[0])
    reader = h.open(pool=two, layout=second[0])
    try:
        stored = _write(writer, one, key)
    except Exception as error:
        raise NotApplicable(f"the class takes no page of a {first[0]} pool: {error}") from error
    if not stored:
        raise NotApplicable(f"the class takes no page of a {first[0]} pool")
    try:
        hit = _read(reader, two, key)
    except Exception:  # noqa: BLE001 - anything but a hit is well here
        return
    if not hit:
        return
    expected, found = _logical(one).double(), _logical(two).double()
    wrong = int((expected != found).sum())
    if wrong:
        raise CaseFailed(f"{what}: a hit, and {wrong} of {expected.numel()} values of K and V are wrong")


@peer_case("pools", "the host layout is not in the key")
def host_layouts_share_no_key(h: PeerHarness) -> None:
    """A page is stored from a pool of one layout and read into a pool of another, of the same model.

    layer_first and page_first, or, where the class takes no layer_first, page_first_direct and page_first.
    """
    import torch

    for other in ("layer_first", "page_first_direct"):
        try:
            what = f"stored under {other}, read as page_first"
            _same_key(h, (other, torch.float16), ("page_first", torch.float16), what)
        except NotApplicable:
            if other == "page_first_direct":
                raise


@peer_case("pools", "the element type is not in the key")
def element_types_share_no_key(h: PeerHarness) -> None:
    """A page is stored from a float16 pool and read into a bfloat16 one of the same model."""
    import torch

    _same_key(h, ("page_first", torch.float16), ("page_first", torch.bfloat16), "stored as float16, read as bfloat16")
