"""Stores that are made differently, and are right: the suite must not ask for more than the contract does."""

from collections import Counter

import numpy as np
import pytest
from hicache_conformance import Target, run
from sound_backend import LIMIT, Sound, spec_of

from hicache_core.plugin.spec import hookimpl
from hicache_core.types import Capabilities, Outcome


class Minimal:
    """Only the required hooks and the arguments that it wants: cannot delete, list, replace or tell EXISTS."""

    capabilities = Capabilities(max_page_bytes=LIMIT)

    def __init__(self, options, context):
        self.sound = Sound(options, context)

    @hookimpl
    def batch_exists(self, keys):
        return self.sound.batch_exists(keys, None)

    @hookimpl
    def batch_get(self, keys, pages):
        return self.sound.batch_get(keys, pages, None)

    @hookimpl
    def batch_set(self, keys, pages):
        return [Outcome.STORED if o else o for o in self.sound.batch_set(keys, pages, _Plain)]

    @hookimpl
    def close(self):
        return None


class _Plain:
    replace = False


class Aligned(Sound):
    """Wants 512-byte alignment, long-lived memory registered, pages of at most 64 KiB; deletes some time later."""

    capabilities = Capabilities(
        shared=True, delete="eventual", alignment=512, registration="region", max_page_bytes=64 << 10
    )

    def __init__(self, options, context):
        super().__init__(options, context)
        self.regions = Counter()

    @hookimpl
    def register_region(self, buffer):
        self.regions[_address(buffer), len(buffer)] += 1

    @hookimpl
    def unregister_region(self, buffer):
        region = (_address(buffer), len(buffer))
        if not self.regions[region]:
            raise ValueError(f"{region} is taken back, but was never lent")
        self.regions[region] -= 1

    def checked(self, page):
        for buffer in page:
            if _address(buffer) % 512 or len(buffer) % 512:
                raise ValueError(f"{len(buffer)} bytes at {_address(buffer):#x} are not aligned")

    @hookimpl
    def scan(self, namespace, cursor):
        return None

    def get(self, key, page):
        self.checked(page)
        return Sound.get(self, key, page)

    def set(self, key, page, ctx):
        self.checked(page)
        return Outcome.REJECTED if sum(map(len, page)) > 64 << 10 else Sound.set(self, key, page, ctx)

    @hookimpl
    def delete(self, keys, ctx):
        return [Outcome.HIT if self.legal(key) and key in self.pages else Outcome.MISS for key in keys]


def _address(buffer):
    return np.frombuffer(buffer, np.uint8).ctypes.data


@pytest.mark.parametrize("backend", [Minimal, Aligned], ids=lambda backend: backend.__name__)
def test_a_right_store_earns_core(backend):
    report = run(Target(spec_of(backend)), levels=["core"], seed=1)
    others = [r for r in report.results if r.outcome != "pass"]
    assert {(r.not_applicable, r.reason.partition(" ")[2]) for r in others} == {(True, "is not marked pagewise")}
    assert report.levels == {"core": "pass"}


def test_the_dynamic_backend_is_judged_like_any_other():
    target = Target("dynamic", {"module": "dynamic_store", "class_name": "DynamicStore"})
    cases = ["an_illegal_key_touches_nothing", "what_is_not_supported_is_said", "a_session_tells_gaps"]
    cases += ["plaintext_never_reaches_the_store", "close_is_idempotent", "a_stalled_read_ends_at_its_deadline"]
    report = run(target, cases=cases, seed=1)
    assert len(report.results) == 6
    assert [(r.id, r.outcome, r.reason) for r in report.results if r.outcome != "pass"] == []
