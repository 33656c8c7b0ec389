"""The written reports: complete, parseable, harmless whatever a store says, and the same run again by its command."""

import dataclasses
import io
import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from types import SimpleNamespace

import msgspec
import pytest
from hicache_conformance import Target, run
from hicache_conformance.badge import to_badge
from hicache_conformance.command import run_command
from hicache_conformance.junit import to_junit
from hicache_conformance.measuring import PAGE_SIZES, STEPS, measure
from hicache_conformance.page import to_html
from hicache_conformance.report import Appendix, CaseResult, Report, command_line
from hicache_conformance.runner import _command
from hicache_conformance.terminal import print_report
from hicache_conformance.versions import versions
from rich.console import Console
from sound_backend import Sound, spec_of
from typer.testing import CliRunner

from hicache_core.cli.app import app
from hicache_core.storage.measure import Speed
from hicache_core.types import SdkRequirement

REAL = "exists_counts_the_run_from_the_start"
HOSTILE = '<script>alert("x")</script> & \x00\x1b[31m \udc80 ]]> \' "'
VOID = {"meta", "br"}


class Outline(HTMLParser):
    """Tags must close in order; text and attributes are kept."""

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.words, self.attributes = [], [], [], []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return "".join(self.words)


def report_of(*results, **more):
    levels = ("core", "durable", "hostile")
    return Report(
        "mystore", {"python": "3.x", "vendor-sdk": "1.2"}, 42, levels, not_declared=("durable",),
        results=list(results), expected={"core": 1, "hostile": 1},
        command="hicache conformance mystore -o root=/x", seconds=1.5, **more,
    )  # fmt: skip


MIXED = (
    CaseResult(REAL, "core", "fail", HOSTILE, seconds=0.25),
    CaseResult("b", "core", "error", "KeyError: 'x' at store.py:3"),
    CaseResult("c", "hostile", "pass", seconds=0.5),
    CaseResult("d", "core", "skip", "capability delete is not declared"),
    CaseResult("e", "core", "xfail", "their server rounds (found 3)"),
    CaseResult("f", "hostile", "skip", "keeps no files", not_applicable=True),
)
SPEED = Speed(64 << 10, 16, 3, 1234.5, 2345.6, 78.0, 9000.0, 0)


def test_the_page_names_everything_and_needs_nothing_else():
    report = report_of(
        *MIXED, fake=True, fake_reason="a dict", options={"root": "/x"},
        appendix=Appendix([SPEED], ["1 MiB: the store takes pages of 256 KiB at most"]),
    )  # fmt: skip
    page = to_html(report)
    outline = Outline(page)
    for said in (
        "mystore", "earned hostile", "2 cases do not hold", "not declared", "a dict", "vendor-sdk", "1.2", "root",
        "/x", "42", "capability delete is not declared", "their server rounds", "keeps no files",
        "KeyError: 'x' at store.py:3", "1,234", "64 KiB", "at most",
        "hicache conformance mystore -o root=/x --case b --seed 42",
    ):  # fmt: skip
        assert said in outline.text
    assert not {"script", "link", "img", "iframe", "object"} & set(outline.tags)
    assert not [value for name, value in outline.attributes if name in ("src", "href") or name.startswith("on")]
    assert "url(" not in page
    assert "@import" not in page
    assert "prefers-color-scheme: dark" in page
    page.encode()


def test_what_a_store_says_is_text_in_every_report():
    report = report_of(CaseResult(REAL, "core", "fail", HOSTILE), fake=True, fake_reason=HOSTILE[:30])
    report.backend = report.command = '<b>"&'
    report.options = {"<i>": HOSTILE}
    outline = Outline(to_html(report))
    assert '<script>alert("x")</script>' in outline.text
    assert not {"script", "i"} & set(outline.tags)
    failure = ET.fromstring(to_junit(report)).find(".//failure")
    assert '<script>alert("x")</script>' in failure.get("message")
    assert ET.fromstring(to_badge(report)).tag.endswith("svg")
    msgspec.json.encode(report.as_dict(), enc_hook=str)


def test_junit_counts_every_case_once():
    root = ET.fromstring(to_junit(report_of(*MIXED)))
    (suite,) = root
    assert {k: suite.get(k) for k in ("tests", "failures", "errors", "skipped")} == {
        "tests": "6",
        "failures": "1",
        "errors": "1",
        "skipped": "3",
    }
    found = {case.get("name"): [child.tag for child in case] for case in suite.iter("testcase")}
    assert found == {
        REAL: ["failure"], "b": ["error"], "c": [], "d": ["skipped"], "e": ["skipped"], "f": ["skipped"],
    }  # fmt: skip
    assert "--case b --seed 42" in suite.find("testcase[@name='b']/error").text
    properties = {p.get("name"): p.get("value") for p in suite.iter("property")}
    assert properties["level.durable"] == "not_declared"
    assert properties["version.vendor-sdk"] == "1.2"


@pytest.mark.parametrize(
    ("results", "fake", "said", "unsaid"),
    [
        ([CaseResult("a", "core", "pass"), CaseResult("b", "hostile", "pass")], False, "core · hostile", "fake"),
        ([CaseResult("a", "core", "pass"), CaseResult("b", "hostile", "fail", "x")], True, "fails hostile", "earned"),
        ([CaseResult("a", "core", "skip", "x")], True, "no level earned", "fails"),
    ],
)
def test_the_badge_says_what_was_earned_and_that_a_store_is_a_fake(results, fake, said, unsaid):
    svg = to_badge(report_of(*results, fake=fake))
    shown = [node.text for node in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert shown[0] == "mystore"
    assert said in shown
    assert ("fake store" in shown) is fake
    assert unsaid not in " ".join(shown)


def test_the_command_writes_every_form(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"json_path": "a/r.json", "junit_path": "a/r.xml", "html_path": "a/r.html", "badge_path": "a/r.svg"}
    quiet = Console(file=io.StringIO())
    assert run_command("memory", {}, cases=[REAL], seed=5, measured=True, console=quiet, **names) == 0
    report = json.loads((tmp_path / "a/r.json").read_text())
    assert report["command"] == "hicache conformance memory --seed 5"
    assert [speed["page_bytes"] for speed in report["throughput"]["speeds"]] == list(PAGE_SIZES)
    assert report["started"].endswith("+00:00")
    Outline((tmp_path / "a/r.html").read_text())
    assert ET.parse(tmp_path / "a/r.xml").getroot().tag == "testsuites"
    assert ET.parse(tmp_path / "a/r.svg").getroot().tag.endswith("svg")


def test_a_failing_case_names_the_command_that_runs_it_again():
    options = {"endpoint": "a b", "path": "it's"}
    line = command_line("mystore", options)
    assert line == """hicache conformance mystore -o 'endpoint=a b' -o 'path=it'"'"'s'"""
    report = run(Target("memory", {"name": "x"}), cases=[REAL], seed=3)
    assert report.reproduce(REAL) == f"hicache conformance memory -o name=x --case {REAL} --seed 3"
    assert "reproduce" not in report.as_dict()["cases"][0]
    report = run(Target(spec_of(Sound)), cases=[REAL], seed=3)
    assert report.reproduce(REAL) == f"run(target, cases=['{REAL}'], seed=3)"


def test_secrets_are_hidden_in_the_command_and_in_reasons():
    target = Target("s3://user:hunter22@host/bucket?secret_key=hunter23")
    assert "hunter" not in _command(target, SimpleNamespace(options={}))


def test_the_terminal_shows_how_to_run_a_failure_again_and_the_appendix():
    stream = io.StringIO()
    report = report_of(*MIXED, appendix=Appendix([SPEED], ["1 MiB: too slow"]))
    print_report(report, Console(file=stream, width=160, no_color=True))
    assert f"--case {REAL} --seed 42" in stream.getvalue()
    assert "2,346" in stream.getvalue()
    assert "not measured: 1 MiB: too slow" in stream.getvalue()


def test_what_cannot_be_measured_is_named_and_decides_nothing(monkeypatch):
    steps = []
    appendix = measure(Target("memory", {"max_bytes": 5 << 20}), lambda: steps.append(1))
    assert [speed.page_bytes for speed in appendix.speeds] == list(PAGE_SIZES)
    assert len(steps) == STEPS
    assert any("failed while" in text for text in appendix.skipped)
    assert not report_of(CaseResult("a", "core", "pass"), appendix=appendix).failed

    def refuse(*args, **kwargs):
        raise OSError("no room")

    monkeypatch.setattr("hicache_conformance.measuring.measure_backend", refuse)
    assert measure(Target("memory")).skipped == ["64 KiB: no room", "256 KiB: no room", "1 MiB: no room"]


def test_versions_name_the_sdks_of_the_backend():
    requires = (SdkRequirement("msgspec", "pip install msgspec"), SdkRequirement("no_such_sdk", "pip install it"))
    spec = spec_of(Sound)
    found = versions(Target(spec), dataclasses.replace(spec, requires=requires))
    assert found["msgspec"] == msgspec.__version__
    assert found["no_such_sdk"] == "not installed"


def invoke(*args):
    return CliRunner().invoke(app, ["conformance", *args])


def test_a_badge_without_a_file_gets_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert invoke("memory", "--case", REAL, "--badge").exit_code == 0
    assert invoke("memory", "--badge", "x.svg", "--case", REAL).exit_code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hicache-badge.svg", "x.svg"]


def test_a_report_that_cannot_be_written_is_refused_before_the_run(tmp_path):
    (tmp_path / "d").write_text("a file")
    refused = invoke("memory", "--html", str(tmp_path / "d" / "r.html"))
    assert re.search(r"--html .*cannot be written", str(refused.exception))
    assert "only --json" in str(invoke("memory", "--junit", "-").exception)


def test_the_command_without_a_name_says_what_is_missing():
    said = invoke()
    assert said.exit_code
    assert "NAME" in f"{said.output} {said.exception}"
