from pathlib import Path

import pytest

from hicache_core.replay.oracle import Oracle
from hicache_core.replay.trace import TraceError, read_trace

GOOD = '{"timestamp": 0, "input_length": 1024, "output_length": 5, "hash_ids": [0, 1], "type": "chat"}\n'


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_lines_become_requests(tmp_path: Path) -> None:
    requests = read_trace(write(tmp_path / "t.jsonl", GOOD + "\n" + GOOD))
    assert [request.hash_ids for request in requests] == [[0, 1], [0, 1]]
    assert requests[0].input_length == 1024


def test_limit_stops_reading(tmp_path: Path) -> None:
    assert len(read_trace(write(tmp_path / "t.jsonl", GOOD * 3 + "broken"), limit=2)) == 2


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("not json", "not JSON"),
        ("[1]", "Expected `object`"),
        ('{"a": ' * 100_000, "nested too deeply"),
        ('{"timestamp": 0, "input_length": 1, "output_length": 1}', "hash_ids"),
        (GOOD.replace("[0, 1]", "[0, -1]"), "hash_ids"),
        (GOOD.replace("[0, 1]", '["a"]'), "hash_ids"),
        (GOOD.replace("[0, 1]", "[4294967296]"), "hash_ids"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, says: str) -> None:
    path = write(tmp_path / "t.jsonl", GOOD + line)
    with pytest.raises(TraceError, match=says) as caught:
        read_trace(path)
    assert f"{path}:2:" in str(caught.value)


def test_a_trace_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"none\.jsonl: No such file"):
        read_trace(tmp_path / "none.jsonl")


def test_the_oracle_counts_leading_runs_only() -> None:
    oracle = Oracle()
    assert oracle.run([1, 2, 3]) == 0
    assert oracle.run([1, 2, 4]) == 2
    assert oracle.run([5, 3]) == 0
    assert oracle.run([1, 2, 4]) == 3
    assert oracle.hit_pages == 5


def test_a_block_behind_other_blocks_is_another_page() -> None:
    oracle = Oracle()
    assert oracle.run([1, 2]) == 0
    assert oracle.run([2, 1]) == 0
    assert oracle.run([3, 2, 1]) == 0
    assert oracle.run([1, 1, 1]) == 1
    assert oracle.run([1, 1, 1, 1]) == 3
    assert oracle.run([]) == 0
    assert oracle.hit_pages == 4


def test_the_oracle_on_the_published_trace() -> None:
    path = Path(__file__).parents[3] / "shared" / "data" / "conversation_trace.jsonl"
    if not path.exists():
        pytest.skip("the published trace is not here")
    requests = read_trace(path)
    oracle = Oracle()
    for request in requests:
        oracle.run(request.hash_ids)
    assert len(requests) == 12031
    assert sum(len(request.hash_ids) for request in requests) == 288500
    assert oracle.hit_pages == 105710


def test_a_trace_without_requests_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="holds no request"):
        read_trace(write(tmp_path / "t.jsonl", "\n"))
