from __future__ import annotations

from pathlib import Path

import pytest

from hicache_core.errors import CapacityError, ConfigError
from hicache_core.pools.budget import GIB, MemoryBudget, default_reserve, memory_budget
from hicache_core.pools.geometry import KVGeometry
from hicache_core.pools.sizing import check_capacity, size_host_pool

PAGE = KVGeometry("mha", 30, 3, 64, dtype="float32", page_size=16)


def budget(available: float, total: float = 64):
    return lambda: MemoryBudget(int(available * GIB), int(total * GIB), "MemAvailable")


def test_by_size_in_gb_of_ten_to_the_nine():
    size = size_host_pool(PAGE, 10, ratio=3.0, size_gb=1.5, budget=budget(32))
    assert size.num_pages == 1_500_000_000 // PAGE.page_nbytes
    assert size.nbytes == size.num_pages * PAGE.page_nbytes
    assert size.source == "size"


def test_by_ratio_and_by_default_ratio():
    assert size_host_pool(PAGE, 100, ratio=1.5, budget=budget(32)).num_pages == 150
    auto = size_host_pool(PAGE, 100, budget=budget(32))
    assert (auto.num_pages, auto.source, auto.notes) == (200, "auto", ())


def test_automatic_is_cut_to_what_is_there():
    size = size_host_pool(PAGE, 10**6, reserve=2 * GIB, ranks=2, budget=budget(10))
    assert size.num_pages == int(8 * GIB * 0.8) // 2 // PAGE.page_nbytes
    assert "sized down" in " ".join(size.notes)
    assert "not larger than the device pool" in " ".join(size.notes)
    assert "2 ranks" in size.describe()


def test_too_large_is_refused_with_the_numbers():
    with pytest.raises(CapacityError) as refused:
        size_host_pool(PAGE, 10, size_gb=50, ranks=2, reserve=4 * GIB, budget=budget(40, 64))
    message = str(refused.value)
    for number in ("50.00 GB", "each of 2 ranks", "42.95 GB of 68.72 GB", "4.29 GB stay reserved", "19.33 GB can be"):
        assert number in message
    assert "Lower hicache_size" in message
    with pytest.raises(CapacityError, match="Lower hicache_ratio"):
        size_host_pool(PAGE, 10**6, ratio=2.0, budget=budget(8))


def test_nothing_left_and_nonsense():
    with pytest.raises(CapacityError, match="would hold no page"):
        size_host_pool(PAGE, 100, budget=budget(0.5))
    with pytest.raises(CapacityError, match="would hold no page"):
        size_host_pool(PAGE, 100, size_gb=0.0001, budget=budget(32))
    with pytest.raises(ConfigError, match="negative"):
        size_host_pool(PAGE, 100, size_gb=-1, budget=budget(32))
    with pytest.raises(ConfigError, match="positive"):
        size_host_pool(PAGE, 100, ratio=0.0, budget=budget(32))


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), -1.0])
@pytest.mark.parametrize("name", ["ratio", "size_gb"])
def test_a_size_that_is_no_number_is_refused(name, value):
    with pytest.raises(ConfigError, match=f"hicache_{name.removesuffix('_gb')} .* finite"):
        size_host_pool(PAGE, 10, **{name: value})


def test_reserve_grows_with_the_machine():
    assert default_reserve(MemoryBudget(0, 4 * GIB, "")) == GIB
    assert default_reserve(MemoryBudget(0, 40 * GIB, "")) == 5 * GIB
    assert default_reserve(MemoryBudget(0, 1000 * GIB, "")) == 10 * GIB
    check_capacity(GIB, reserve=GIB, budget=MemoryBudget(2 * GIB, 4 * GIB, ""))
    with pytest.raises(CapacityError):
        check_capacity(GIB + 1, reserve=GIB, budget=MemoryBudget(2 * GIB, 4 * GIB, ""))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def machine(root: Path, cgroup: str) -> Path:
    write(root / "proc/meminfo", "MemTotal:  16777216 kB\nMemAvailable:  8388608 kB\nHugePages_Total: 0\n")
    write(root / "proc/self/cgroup", cgroup)
    return root / "proc"


def test_budget_without_a_cgroup_limit(tmp_path):
    proc = machine(tmp_path, "0::/\n")
    write(tmp_path / "cg/memory.max", "max\n")
    assert memory_budget(proc, tmp_path / "cg") == MemoryBudget(8 * GIB, 16 * GIB, "MemAvailable")


def test_budget_of_cgroup_v2_counts_page_cache_as_free_and_obeys_ancestors(tmp_path):
    proc = machine(tmp_path, "0::/pod/box\n")
    for name, limit, used in (("pod", 4 * GIB, 3 * GIB), ("pod/box", "max", GIB)):
        write(tmp_path / "cg" / name / "memory.max", f"{limit}\n")
        write(tmp_path / "cg" / name / "memory.current", f"{used}\n")
    write(tmp_path / "cg/pod/memory.stat", f"anon 5\ninactive_file {GIB}\nactive_file 1024\n")
    found = memory_budget(proc, tmp_path / "cg")
    assert found.available == 2 * GIB + 1024
    assert found.total == 4 * GIB
    assert found.source.endswith("pod")


def test_budget_of_cgroup_v1(tmp_path):
    proc = machine(tmp_path, "5:cpu:/\n4:memory:/a\n")
    write(tmp_path / "cg/memory/a/memory.limit_in_bytes", str(2 * GIB))
    write(tmp_path / "cg/memory/a/memory.usage_in_bytes", str(3 * GIB))
    assert memory_budget(proc, tmp_path / "cg").available == 0
    write(tmp_path / "cg/memory/a/memory.limit_in_bytes", str(2**63 - 4096))
    assert memory_budget(proc, tmp_path / "cg").source == "MemAvailable"


def test_budget_of_this_machine_is_sane():
    here = memory_budget()
    assert 0 <= here.available <= here.total
