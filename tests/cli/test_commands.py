"""Commands that need no store: what they print, what they exit with, how they refuse."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from hicache_core.cli import doctor_command
from hicache_core.cli.output import check_report_file
from hicache_core.plugin.environment import Finding


def test_version_and_help(hicache):
    assert hicache("--version").out.startswith("hicache ")
    helped = hicache("--help")
    assert helped.code == 0
    for verb in ("doctor", "backends", "config", "store", "explain", "replay", "conformance", "bench"):
        assert verb in helped.out


def test_backends_list_names_the_core_ones(hicache):
    listed = hicache("backends", "list", "--json")
    assert listed.code == 0
    assert {"memory", "fault", "dynamic"} <= {entry["name"] for entry in listed.json["backends"]}
    assert "memory" in hicache("backends", "list").out


def test_backends_show_has_help_for_every_option(hicache):
    for name in ("memory", "fault", "dynamic"):
        shown = hicache("backends", "show", name, "--json").json
        assert shown["name"] == name
        assert shown["options"]
        assert all(option["help"] for option in shown["options"]), name
        assert hicache("backends", "show", name).code == 0


def test_backends_show_tells_capabilities_that_depend_on_options(hicache):
    words = ("backends", "show", "fault")
    assert "-o inner=" in hicache(*words).out
    assert hicache(*words, "--json").json["capabilities"] is None
    assert hicache(*words, "-o", "inner=memory", "--json").json["capabilities"]["scan"] is True
    assert "reports_exists" in hicache(*words, "-o", "inner=memory").out
    assert hicache(*words, "-o", "inner=memroy").code == 2


def test_an_unknown_backend_names_the_nearest(hicache):
    done = hicache("backends", "show", "memroy")
    assert done.code == 2
    assert "'memory'" in done.err
    assert "unknown backend 'nothing'. Known: " in hicache("backends", "show", "nothing").err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("-o", "max_byte=1"), ("max_byte", "max_bytes")),
        (("-o", "max_bytes=many"), ("max_bytes", "many")),
        (("-o", "max_bytes"), ("NAME=VALUE",)),
    ],
)
def test_a_bad_option_is_named(hicache, options, words):
    done = hicache("store", "ls", "--backend", "memory", *options)
    assert done.code == 2
    for word in words:
        assert word in done.err


@pytest.mark.parametrize("target", ["", ".", "here/is/a/file/r.json", "/proc/none/r.json", "a" * 300])
@pytest.mark.parametrize(
    "command", [("replay", "t.jsonl"), ("bench", "--backend", "memory"), ("conformance", "memory")]
)
def test_a_report_that_could_not_be_written_is_refused_before_the_work(
    hicache, monkeypatch, tmp_path, command, target
):
    def work(*_: object, **__: object) -> None:
        raise AssertionError("the work began")

    for place in ("replay_command.read_trace", "bench_command.measure_backend"):
        monkeypatch.setattr(f"hicache_core.cli.{place}", work)
    monkeypatch.setattr("hicache_conformance.command.run_command", work)
    (tmp_path / "here" / "is" / "a").mkdir(parents=True)
    (tmp_path / "here" / "is" / "a" / "file").write_text("")
    before = sorted(tmp_path.rglob("*"))
    done = hicache(*command, "--json", target)
    assert done.code == 2
    assert "the report cannot be written" in done.err
    assert sorted(tmp_path.rglob("*")) == before


def test_looking_whether_a_report_can_be_written_changes_no_file(tmp_path):
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text("kept")
    assert [check_report_file(target) for target in (str(old), str(new), "-", None)] == [
        str(old),
        str(new),
        "-",
        None,
    ]
    assert old.read_text() == "kept"
    assert not new.exists()


def test_doctor_reports_and_is_well(hicache):
    done = hicache("doctor", "--json")
    assert done.code == 0, done.out
    assert {finding["level"] for finding in done.json} <= {"ok", "warn"}
    assert hicache("doctor").code == 0


def test_what_stands_in_brackets_is_shown(hicache, monkeypatch):
    finding = Finding("warn", "torch", "not installed", "pip install 'hicache-core[torch]'")
    monkeypatch.setattr(doctor_command, "diagnose", lambda: [finding])
    assert "hicache-core[torch]" in hicache("doctor").out


def test_config_explain_says_where_each_value_came_from(hicache, tmp_path):
    (tmp_path / "c.json").write_text(json.dumps({"page_size": 32, "hicache_ratio": 3.0}))
    done = hicache(
        "config", "explain", "--config", "c.json", "--json",
        "--set", "hicache-ratio=4", "--set", "enable-hierarchical-cache=true",
        env={"HICACHE_PREFETCH_THRESHOLD": "128"},
    )  # fmt: skip
    assert done.code == 0, done.err
    rows = {row["name"]: row for row in done.json["settings"]}
    assert (rows["page_size"]["value"], rows["page_size"]["source"]) == (32, "file c.json")
    assert (rows["hicache_ratio"]["value"], rows["hicache_ratio"]["source"].split()[0]) == (4.0, "flag")
    assert rows["prefetch_threshold"]["source"].startswith("environment")
    assert rows["hicache_write_policy"]["source"] == "default"


def test_config_explain_breaks_no_name_in_80_columns(hicache, monkeypatch):
    monkeypatch.setattr("hicache_core.cli.config_command.out", Console(width=80, highlight=False))
    given = ["enable-hierarchical-cache=true", "hicache-size=0.001", "hicache-ratio=3"]
    done = hicache("config", "explain", *(word for one in given for word in ("--set", one)))
    assert done.code == 0
    assert done.err == ""
    assert max(map(len, done.out.splitlines())) <= 80
    assert "disaggregation_decode_enable_offload_kvcache" in done.out
    assert "corrected hicache_ratio: 3.0 is left out" in done.out
    assert "replaced hicache_ratio: 3.0" in done.out


def test_config_explain_refuses_a_page_size_that_is_no_power_of_two(hicache):
    done = hicache("config", "explain", "--set", "page-size=48")
    assert done.code == 2
    assert "48" in done.err
    assert "power of two" in done.err


def test_bench_measures_a_store(hicache):
    done = hicache("bench", "-b", "memory", "--page-bytes", "4KiB", "--pages", "4", "--rounds", "1", "--json", "-")
    assert done.code == 0, done.err
    report = done.json
    assert report["rows"][0]["failed"] == 0
    assert report["rows"][0]["page_bytes"] == 4096


def test_bench_refuses_an_odd_page_size(hicache):
    done = hicache("bench", "-b", "memory", "--page-bytes", "1000")
    assert done.code == 2
    assert "4096" in done.err
