"""The three doors, the reports, and the guard against cases that were quietly dropped."""

import io
import json

import pytest
from broken_answers import CountsInsteadOfRun
from hicache_conformance import BackendSuite, Target, catalogue, run, stated_reason
from hicache_conformance.command import FAILED, MISUSED, PASSED, UNOPENED, run_command
from hicache_conformance.report import CaseResult, Report, mark
from hicache_conformance.suite import tampering
from hicache_conformance.terminal import print_report
from rich.console import Console
from sound_backend import DictDoor, Sound, spec_of

from hicache_core.errors import UnknownNameError

pytest_plugins = ["pytester"]

QUICK = ["exists_counts_the_run_from_the_start", "an_empty_batch_is_legal", "pages_survive_a_reopen"]
ROOTED = "no_key_leads_out_of_the_root"


def written(run_it):
    stream = io.StringIO()
    code = run_it(Console(file=stream, width=160, no_color=True))
    return code, stream.getvalue()


def test_the_command_reports_levels_cases_seed_and_versions(tmp_path):
    path = tmp_path / "c.json"
    code, text = written(
        lambda c: run_command("memory", {}, json_path=path, seed=7, cases=[*QUICK, ROOTED], console=c)
    )
    report = json.loads(path.read_text())
    assert code == PASSED
    assert report["backend"] == "memory"
    assert report["seed"] == 7
    assert report["levels"] == {
        "core": "partial",
        "zero_copy": "not_declared",
        "hybrid": "partial",
        "durable": "not_declared",
        "shared": "not_declared",
        "hostile": "partial",
    }
    assert {c["id"]: c["outcome"] for c in report["cases"]} == {
        QUICK[0]: "pass",
        QUICK[1]: "pass",
        QUICK[2]: "skip",
    }
    assert all(set(c) == {"id", "level", "outcome", "reason", "seconds"} for c in report["cases"])
    assert all(c["reason"] for c in report["cases"] if c["outcome"] != "pass")
    assert report["counts"] == {"pass": 2, "fail": 0, "skip": 1, "xfail": 0, "error": 0}
    assert [c["id"] for c in report["not_applicable"]] == [ROOTED]
    assert {"hicache-core", "hicache-conformance", "python", "plugin_api"} <= set(report["versions"])
    assert "seed 7" in text
    assert "not_declared" in text


def test_the_command_shows_every_failure_and_exits_with_1(tmp_path, monkeypatch):
    from hicache_core.storage.memory import MemoryBackend

    monkeypatch.setattr(MemoryBackend, "batch_exists", CountsInsteadOfRun.batch_exists)
    monkeypatch.setattr(MemoryBackend, "legal", lambda self, key: True, raising=False)
    monkeypatch.setattr(MemoryBackend, "pages", property(lambda self: self.store.pages), raising=False)
    path = tmp_path / "c.json"
    code, text = written(lambda c: run_command("memory", {}, json_path=path, seed=1, cases=QUICK[:2], console=c))
    assert code == FAILED
    assert QUICK[0] in text
    assert "expected 3, found 6" in text
    assert json.loads(path.read_text())["levels"]["core"] == "fail"


def test_the_command_writes_json_alone_on_standard_output(capfdbinary, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert run_command("memory", {}, json_path="-", seed=1, cases=QUICK[:1]) == 0
    said = capfdbinary.readouterr()
    assert json.loads(said.out)["seed"] == 1
    assert list(tmp_path.iterdir()) == []
    assert run_command("memry", {}, json_path="-") == MISUSED
    said = capfdbinary.readouterr()
    assert (said.out, b"did you mean" in said.err) == (b"", True)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("memry", {}, "did you mean 'memory'"),
        ("memory", {"max_byte": "1"}, "max_bytes"),
        ("memory", {"max_bytes": "many"}, "max_bytes"),
    ],
)
def test_the_command_explains_what_it_cannot_run(name, options, said):
    code, text = written(lambda c: run_command(name, options, cases=QUICK[:1], console=c))
    assert code == MISUSED
    assert said in text


def test_a_backend_that_is_none_is_told_once_and_not_by_each_case(monkeypatch):
    from hicache_core.storage.memory import MemoryBackend

    def bare(self, keys):
        return 0

    monkeypatch.setattr(MemoryBackend, "batch_exists", bare)
    code, text = written(lambda c: run_command("memory", {}, console=c))
    assert code == MISUSED
    assert text.count("@hookimpl") == text.count("\n") == 1


def test_a_store_that_does_not_open_is_told_once(tmp_path):
    taken = tmp_path / "file"
    taken.write_text("no directory")
    options = {"module": "sqlite3", "class_name": "Connection", "database": str(taken / "x")}
    code, text = written(lambda c: run_command("dynamic", options, console=c))
    assert code == UNOPENED
    assert "could not be opened" in text


def test_cases_with_one_reason_share_it():
    stream = io.StringIO()
    report = Report("x", {}, 1, ("core",), results=[CaseResult(f"case_{n}", "core", "skip", "why") for n in range(3)])
    print_report(report, Console(file=stream, width=160, no_color=True))
    assert stream.getvalue().count("why") == 1
    assert all(f"core/case_{n}" in stream.getvalue() for n in range(3))


def test_an_unknown_level_or_case_names_the_nearest():
    with pytest.raises(UnknownNameError, match="hostile"):
        catalogue(["hostil"])
    with pytest.raises(UnknownNameError, match="an_empty_batch_is_legal"):
        run(Target("memory"), cases=["an_empty_batch_is_legall"])


def test_the_function_door_takes_a_spec_and_reports_progress():
    seen = []
    report = run(Target(spec_of(Sound), back_door=DictDoor), cases=QUICK[:2], seed=3, on_result=seen.append)
    assert [r.id for r in seen] == QUICK[:2]
    assert not report.failed


def test_without_a_back_door_cases_are_skipped_with_what_they_need_and_the_level_is_partial():
    report = run(Target(spec_of(Sound)), levels=["hostile"], cases=["a_page_that_vanished_is_a_miss"], seed=1)
    (result,) = report.results
    assert result.outcome == "skip"
    assert "hicache.backdoors" in result.reason
    assert report.levels == {"hostile": "partial"}


def test_the_same_seed_makes_the_same_history():
    class Spy(Sound):
        """Writes down what it is asked."""

        calls: list = []  # noqa: RUF012 - one list on purpose

        def set(self, key, page, ctx):
            self.calls.append((key.partition("/")[2], sum(map(len, page)), ctx.replace))
            return Sound.set(self, key, page, ctx)

    histories = []
    for seed in (5, 5, 6):
        Spy.calls.clear()
        run(Target(spec_of(Spy)), cases=["random_histories_agree_with_a_model"], seed=seed)
        histories.append(list(Spy.calls))
    assert histories[0] == histories[1]
    assert histories[0] != histories[2]


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        (["pass", "pass"], "pass"),
        (["pass", "skip"], "partial"),
        (["pass", "xfail"], "partial"),
        (["skip", "fail"], "fail"),
        (["pass", "error"], "fail"),
        ([], "partial"),
    ],
)
def test_a_level_is_earned_only_without_failures_and_skips(outcomes, expected):
    assert mark(outcomes) == expected


def test_a_level_of_which_cases_were_left_out_is_not_earned():
    report = Report("x", {}, 0, ("core",), results=[CaseResult("a", "core", "pass")], expected={"core": 2})
    assert report.levels == {"core": "partial"}
    report.results.append(CaseResult("b", "core", "pass"))
    assert report.levels == {"core": "pass"}


def test_an_announced_failure_is_xfail_and_an_announced_failure_that_passes_fails():
    excuse = {QUICK[0]: "counts on purpose"}
    report = run(Target(spec_of(CountsInsteadOfRun), xfail=excuse), cases=QUICK[:1], seed=1)
    assert (report.results[0].outcome, report.levels["core"]) == ("xfail", "partial")
    assert "counts on purpose" in report.results[0].reason
    report = run(Target(spec_of(Sound), xfail=excuse), cases=QUICK[:1], seed=1)
    assert report.results[0].outcome == "fail"
    assert "marked xfail" in report.results[0].reason


def test_the_guard_finds_removed_and_overridden_cases():
    class Removed(BackendSuite):
        test_an_empty_batch_is_legal = None

    class Overridden(BackendSuite):
        def test_an_empty_batch_is_legal(self):
            """Nothing."""

    class Reasoned(BackendSuite):
        @stated_reason("our store has no empty batches: the client refuses them")
        def test_an_empty_batch_is_legal(self):
            """Nothing."""

    class Excused(BackendSuite):
        xfail = {"an_empty_batch_is_legal": " ", "no_such_case": "because"}  # noqa: RUF012

    class Clean(BackendSuite):
        xfail = {"an_empty_batch_is_legal": "the client refuses them"}  # noqa: RUF012

    assert "removed" in tampering(Removed)[0]
    assert "overridden" in tampering(Overridden)[0]
    assert tampering(Reasoned) == tampering(Clean) == tampering(BackendSuite) == []
    assert len(tampering(Excused)) == 2
    with pytest.raises(ValueError, match="needs a reason"):
        stated_reason(" ")


SUITE = """
import pytest
from hicache_conformance import BackendSuite, Target

class TestMemory(BackendSuite):
    xfail = {"a_key_and_a_longer_path_are_both_legal": "to see a strict xfail"}
    @pytest.fixture
    def target(self):
        return Target("memory")
"""


def test_the_pytest_door_runs_under_strict_markers(pytester):
    pytester.makepyfile(SUITE)
    result = pytester.runpytest(
        "--strict-markers",
        "--conformance-seed=3",
        "-rs",
        "-p",
        "no:cacheprovider",
        "-k",
        "empty_batch or longer_path or reopen or leads_out or overridden",
    )
    result.assert_outcomes(passed=2, failed=1, skipped=2)
    result.stdout.fnmatch_lines(["*marked xfail: to see a strict xfail*"])
    result.stdout.fnmatch_lines(["*capability durable is not declared*"])


def test_the_pytest_door_selects_by_level(pytester):
    pytester.makepyfile(SUITE)
    result = pytester.runpytest(
        "--strict-markers", "--collect-only", "-q", "-p", "no:cacheprovider", "-m", "hicache_hostile"
    )
    assert f"{len(catalogue(['hostile']))}/" in result.stdout.str()


class TestMemory(BackendSuite):
    """The pytest door in earnest, on the backend that comes with the core."""

    @pytest.fixture
    def target(self):
        return Target("memory")
