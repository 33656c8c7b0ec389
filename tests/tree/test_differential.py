"""The tree and its naive twin do the same, whatever happens, and the tree is whole after every step."""

from __future__ import annotations

import random
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hicache_core.errors import MisuseError
from hicache_core.tree import HostLock, Node, RadixTree, StorageState, TreeKey, find_policy, policy_names
from hicache_core.tree.base import is_device_leaf, is_host_leaf
from hicache_core.tree.naive import NaiveTree

PAGE = 2
NAMESPACES = ({}, {}, {}, {"extra_key": "lora"})


def sequence(number: int) -> list[int]:
    """One of the 127 sequences of 0 … 6 pages over two kinds of page: few, so that they meet often."""
    return [int(bit) for bit in f"{number + 1:b}"[1:] for _ in range(PAGE)]


sequences = st.integers(0, 126).map(sequence)
namespaces = st.sampled_from(NAMESPACES)
seeds = st.integers(0, 10_000)
holds_something = precondition(lambda self: self.tree.node_count)


class Pool:
    """Slots that must come back exactly once."""

    def __init__(self) -> None:
        self.next = 0
        self.out: set[int] = set()

    def alloc(self, n: int) -> list[int]:
        slots = list(range(self.next, self.next + n))
        self.next += n
        self.out.update(slots)
        return slots

    def free(self, slots: Any) -> None:
        for slot in slots:
            self.out.remove(int(slot))


class TwinMachine(RuleBasedStateMachine):
    """Both trees side by side; slots are accounted for as an engine would."""

    @initialize(policy=st.sampled_from(policy_names()))
    def start(self, policy: str) -> None:
        self.tick = 0
        self.policy = find_policy(policy)
        self.tree = RadixTree(PAGE, eviction=policy, clock=self.now)
        self.naive = NaiveTree(PAGE, clock=self.now)
        self.device, self.host = Pool(), Pool()
        self.locks: list[Node] = []
        self.host_locks: list[tuple[HostLock, list[TreeKey]]] = []
        self.writes: dict[int, list[int]] = {}
        self.loads: dict[int, list[int]] = {}
        self.next_op = 0

    def now(self) -> int:
        return self.tick

    # choosing

    def nodes(self) -> list[Node]:
        return sorted(self.tree.walk(), key=lambda node: node.id)

    def pick(self, seed: int, *, want: Any = None) -> Node | None:
        nodes = [node for node in self.nodes() if want is None or want(node)]
        return nodes[seed % len(nodes)] if nodes else None

    def spans(self, nodes: list[Node]) -> list[TreeKey]:
        return [page for node in nodes for page in self.naive.span(self.tree.key_of(node), node.pages)]

    # matching and inserting

    @rule(tokens=sequences, namespace=namespaces, touch=st.booleans())
    def match(self, tokens: list[int], namespace: dict[str, str], touch: bool) -> None:
        self.tick += 1
        key = self.tree.key(tokens, **namespace)
        ours, theirs = self.tree.match_prefix(key, touch=touch), self.naive.match_prefix(key, touch=touch)
        assert ours.device_indices.tolist() == theirs.device_indices
        assert ours.host_hit_pages == theirs.host_hit_pages
        for name in ("last_device_node", "last_host_node", "best_match_node"):
            node, end = getattr(ours, name), getattr(theirs, name)
            assert self.tree.key_of(node) == end, name
        assert sum(pages for _, pages in self.tree.lookup(key)) == ours.matched_pages

    @rule(
        tokens=sequences, namespace=namespaces, priority=st.integers(0, 2), reuse=st.booleans(), count=st.booleans()
    )
    def insert(self, tokens: list[int], namespace: dict[str, str], priority: int, reuse: bool, count: bool) -> None:
        self.tick += 1
        key = self.tree.key(tokens, **namespace)
        mine = self.tree.match_prefix(key).device_indices.tolist() if reuse else []
        if reuse:
            self.naive.match_prefix(key)
        slots = mine + self.device.alloc(len(key) // PAGE - len(mine))
        ours = self.tree.insert(key, slots, priority=priority, count_hit=count)
        prefix, indices, duplicates = self.naive.insert(key, slots, priority=priority, count_hit=count)
        assert (ours.prefix_pages, ours.device_indices.tolist()) == (prefix, indices)
        assert ours.duplicates.tolist() == duplicates
        assert self.tree.key_of(ours.last_node) == key if key.data else ours.last_node.is_root
        self.device.free(duplicates)

    @rule(tokens=sequences, namespace=namespaces, start=st.integers(0, 5), hashed=st.booleans())
    def insert_host(self, tokens: list[int], namespace: dict[str, str], start: int, hashed: bool) -> None:
        self.tick += 1
        key = self.tree.key(tokens, **namespace)
        start = min(start, len(key) // PAGE)
        slots = self.host.alloc(len(key) // PAGE - start)
        hashes = self.naive.hashes(key, len(slots)) if hashed and slots else None
        ours = self.tree.insert_host(key, slots, hashes, start_page=start)
        inserted, duplicates, anchored = self.naive.insert_host(key, slots, start_page=start)
        assert (ours.inserted_pages, ours.anchored) == (inserted, anchored)
        assert ours.duplicates.tolist() == duplicates
        self.host.free(duplicates)

    @holds_something
    @rule(seed=seeds)
    def hash_a_node(self, seed: int) -> None:
        node = self.pick(seed)
        if node is not None:
            end = self.tree.key_of(node)
            assert self.tree.hashes(node) == self.naive.hashes(end, node.pages)
            assert self.tree.path_hashes(node) == self.naive.hashes(end, len(end) // PAGE)

    # locks

    @holds_something
    @rule(seed=seeds)
    def lock(self, seed: int) -> None:
        node = self.pick(seed)
        if node is not None and len(self.locks) < 4:
            self.tree.inc_lock(node)
            self.naive.inc_lock(self.tree.key_of(node))
            self.locks.append(node)

    @precondition(lambda self: self.locks)
    @rule(seed=seeds)
    def unlock(self, seed: int) -> None:
        node = self.locks.pop(seed % len(self.locks))
        self.naive.dec_lock(self.tree.key_of(node))
        self.tree.dec_lock(node)

    @holds_something
    @rule(seed=seeds)
    def host_lock(self, seed: int) -> None:
        node = self.pick(seed)
        if node is not None and len(self.host_locks) < 4:
            pages = self.naive.inc_host_lock(self.tree.key_of(node), node.pages)
            self.host_locks.append((self.tree.inc_host_lock(node), pages))

    @precondition(lambda self: self.host_locks)
    @rule(seed=seeds)
    def host_unlock(self, seed: int) -> None:
        receipt, pages = self.host_locks.pop(seed % len(self.host_locks))
        assert self.spans(receipt.nodes) == pages
        self.tree.dec_host_lock(receipt)
        self.naive.dec_host_lock(pages)

    # copies between the tiers

    @holds_something
    @rule(seed=seeds)
    def begin_write(self, seed: int) -> None:
        node = self.pick(seed)
        chain = self.tree.unbacked_path(node) if node is not None else []
        if chain:
            self.next_op += 1
            span = self.spans(chain)
            self.tree.begin_write(self.next_op, chain)
            self.naive.begin_write(self.next_op, span)
            self.writes[self.next_op] = self.host.alloc(len(span))

    @precondition(lambda self: self.writes)
    @rule(seed=seeds, good=st.booleans())
    def end_write(self, seed: int, good: bool) -> None:
        self.end_copy(self.writes, self.tree.end_write, "set_host", self.host, seed, good)

    @holds_something
    @rule(seed=seeds)
    def begin_load(self, seed: int) -> None:
        node = self.pick(seed)
        chain = self.tree.loadable_path(node) if node is not None else []
        if chain and not any(link.load_pending for link in chain):
            self.next_op += 1
            span = self.spans(chain)
            self.tree.begin_load(self.next_op, chain)
            self.naive.begin_load(self.next_op, span)
            self.loads[self.next_op] = self.device.alloc(len(span))

    @precondition(lambda self: self.loads)
    @rule(seed=seeds, good=st.booleans())
    def end_load(self, seed: int, good: bool) -> None:
        self.end_copy(self.loads, self.tree.end_load, "set_device", self.device, seed, good)

    def end_copy(self, copies: dict[int, list[int]], end: Any, adopt: str, pool: Pool, seed: int, good: bool) -> None:
        """A copy is over; where it went well its nodes get their slots, the spare ones go back."""
        op = list(copies)[seed % len(copies)]
        slots = copies.pop(op)
        span = self.naive.end_copy(op)
        nodes = end(op)
        assert self.spans(nodes) == span
        for node in nodes:
            mine, slots = slots[: node.pages], slots[node.pages :]
            spare = mine
            if good:
                spare = getattr(self.tree, adopt)(node, mine).tolist()
                assert getattr(self.naive, adopt)(self.tree.key_of(node), mine) == spare
            pool.free(spare)
        assert not slots

    # eviction

    @holds_something
    @rule(pages=st.integers(1, 6), spare=st.integers(0, 3), relock=st.booleans())
    def evict_device(self, pages: int, spare: int, relock: bool) -> None:
        freed, spared = 0, set()
        for node in self.tree.device_victims():
            best = min(self.policy.priority(n) for n in self.nodes() if is_device_leaf(n) and n not in spared)
            assert self.policy.priority(node) == best
            end = self.tree.key_of(node)
            assert self.naive.device_leaf(end)
            if spare:
                spare -= 1
                spared.add(node)
                if relock:
                    self.tree.inc_lock(node)
                    self.tree.dec_lock(node)
            elif node.host is not None:
                slots = self.tree.demote(node).tolist()
                assert self.naive.demote(end, node.pages) == slots
                self.device.free(slots)
                freed += len(slots)
            elif self.tree.droppable(node):
                gone = self.tree.drop(node)
                device, host = self.naive.drop(end, node.pages)
                assert gone.device.tolist() == device
                assert sorted(gone.host.tolist()) == sorted(host)
                self.device.free(device)
                self.host.free(host)
                freed += len(device)
            else:
                spared.add(node)
            self.tree.check_integrity()
            if freed >= pages:
                break

    @holds_something
    @rule(pages=st.integers(1, 6))
    def evict_host(self, pages: int) -> None:
        freed = 0
        for node in self.tree.host_victims():
            assert self.policy.priority(node) == min(self.policy.priority(n) for n in self.nodes() if is_host_leaf(n))
            end = self.tree.key_of(node)
            assert self.naive.host_leaf(end)
            slots = self.tree.drop_host(node).tolist()
            assert self.naive.drop_host(end, node.pages) == slots
            self.host.free(slots)
            freed += len(slots)
            if freed >= pages:
                break

    @holds_something
    @rule(seed=seeds)
    def release_host(self, seed: int) -> None:
        node = self.pick(
            seed, want=lambda n: n.device is not None and n.host is not None and not (n.host_lock_ref or n.in_flight)
        )
        if node is not None:
            end = self.tree.key_of(node)
            slots = self.tree.release_host(node).tolist()
            assert self.naive.release_host(end, node.pages) == slots
            self.host.free(slots)

    @holds_something
    @rule(seed=seeds, state=st.sampled_from(StorageState))
    def storage_state(self, seed: int, state: StorageState) -> None:
        node = self.pick(seed)
        if node is not None:
            node.storage_state = state
            for page in self.spans([node]):
                self.naive.pages[page].storage_state = state

    @precondition(lambda self: self.tree.node_count > 6)
    @rule()
    def reset(self) -> None:
        held = any(node.lock_ref or node.host_lock_ref for node in self.tree.walk())
        if held:
            with pytest.raises(MisuseError):
                self.tree.reset()
        freed = self.tree.reset(force=held)
        device, host = self.naive.reset()
        assert sorted(freed.device.tolist()) == sorted(device)
        assert sorted(freed.host.tolist()) == sorted(host)
        self.device.free(device)
        self.host.free(host)
        for slots in self.writes.values():
            self.host.free(slots)
        for slots in self.loads.values():
            self.device.free(slots)
        self.locks, self.host_locks, self.writes, self.loads = [], [], {}, {}

    # what must always hold

    @invariant()
    def whole(self) -> None:
        self.tree.check_integrity()

    @invariant()
    def same(self) -> None:
        seen = 0
        for node in self.tree.walk():
            device = node.device.tolist() if node.device is not None else [None] * node.pages
            host = node.host.tolist() if node.host is not None else [None] * node.pages
            for i, end in enumerate(self.spans([node])):
                page = self.naive.pages[end]
                seen += 1
                assert (page.device, page.host) == (device[i], host[i])
                for name in page.__struct_fields__[2:]:
                    assert getattr(page, name) == getattr(node, name), name
        assert seen == len(self.naive.pages)
        for name in ("device_evictable_pages", "device_protected_pages", "host_pages"):
            assert getattr(self.tree, name) == getattr(self.naive, name), name

    @invariant()
    def no_slot_is_lost(self) -> None:
        in_flight = sum(map(len, self.loads.values()))
        assert len(self.device.out) == self.tree.device_pages + in_flight
        in_flight = sum(map(len, self.writes.values()))
        assert len(self.host.out) == self.tree.host_pages + in_flight


TestTwins = TwinMachine.TestCase
slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
TestTwins.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, derandomize=True, suppress_health_check=slow
)

WEIGHTS = {
    "match": 6,
    "insert": 8,
    "insert_host": 4,
    "hash_a_node": 1,
    "lock": 2,
    "unlock": 3,
    "host_lock": 2,
    "host_unlock": 3,
    "begin_write": 5,
    "end_write": 5,
    "begin_load": 4,
    "end_load": 4,
    "evict_device": 3,
    "evict_host": 2,
    "release_host": 1,
    "storage_state": 1,
}


def step(machine: TwinMachine, name: str, rng: random.Random) -> None:
    """One operation with random arguments."""
    held = {"unlock": "locks", "host_unlock": "host_locks", "end_write": "writes", "end_load": "loads"}.get(name)
    if held is not None and not getattr(machine, held):
        return
    seed, where = rng.randrange(10_000), {"tokens": sequence(rng.randrange(127)), "namespace": rng.choice(NAMESPACES)}
    arguments: dict[str, dict[str, Any]] = {
        "match": {**where, "touch": rng.random() < 0.8},
        "insert": {**where, "priority": rng.randrange(3), "reuse": rng.random() < 0.5, "count": rng.random() < 0.8},
        "insert_host": {**where, "start": rng.choice((0, 0, 1, 3)), "hashed": rng.random() < 0.5},
        "end_write": {"seed": seed, "good": rng.random() < 0.8},
        "end_load": {"seed": seed, "good": rng.random() < 0.8},
        "evict_device": {"pages": rng.randrange(1, 7), "spare": rng.choice((0, 0, 1)), "relock": rng.random() < 0.5},
        "evict_host": {"pages": rng.randrange(1, 7)},
        "storage_state": {"seed": seed, "state": rng.choice(list(StorageState))},
    }
    getattr(machine, name)(**arguments.get(name, {"seed": seed}))


@pytest.mark.parametrize("policy", policy_names())
@pytest.mark.parametrize("seed", range(3))
def test_long_walks(policy: str, seed: int) -> None:
    """The same machine, deeper: Hypothesis keeps its runs short."""
    machine, rng = TwinMachine(), random.Random(f"{policy}{seed}")
    machine.start(policy=policy)
    for count in range(400):
        step(machine, rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0], rng)
        machine.whole()
        machine.same()
        machine.no_slot_is_lost()
        if count == 300:
            machine.reset()
