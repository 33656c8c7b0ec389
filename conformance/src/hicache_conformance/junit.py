"""The report as JUnit XML, for whatever shows test results."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from hicache_conformance.report import CaseResult, Report

_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def legal(text: str) -> str:
    """The text without the characters that XML cannot hold."""
    return _ILLEGAL.sub("\ufffd", text)


def to_junit(report: Report) -> str:
    """One suite; each case a test of the class `hicache.NAME.LEVEL`. xfail and what does not apply are skipped."""
    counts = report.counts
    beside = len(report.results) - len(report.cases)
    numbers = {
        "tests": str(len(report.results)),
        "failures": str(counts["fail"]),
        "errors": str(counts["error"]),
        "skipped": str(counts["skip"] + counts["xfail"] + beside),
        "time": f"{report.seconds:.3f}",
    }
    root = ET.Element("testsuites", {"name": "hicache conformance", **numbers})
    suite = ET.SubElement(root, "testsuite", {"name": legal(f"hicache conformance {report.backend}"), **numbers})
    if report.started:
        suite.set("timestamp", report.started)
    properties = ET.SubElement(suite, "properties")
    for name, value in _properties(report).items():
        ET.SubElement(properties, "property", {"name": legal(name), "value": legal(value)})
    for result in report.results:
        _case(suite, report, result)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _properties(report: Report) -> dict[str, str]:
    return {
        "seed": str(report.seed),
        "command": report.reproduce(),
        **{f"level.{level}": mark for level, mark in report.levels.items()},
        **{f"version.{name}": version for name, version in report.versions.items()},
        **({"fake": report.fake_sentence} if report.fake else {}),
    }


def _case(suite: ET.Element, report: Report, result: CaseResult) -> None:
    case = ET.SubElement(
        suite,
        "testcase",
        {
            "classname": legal(f"hicache.{report.backend}.{result.level}"),
            "name": result.id,
            "time": f"{result.seconds:.3f}",
        },
    )
    reason = legal(result.reason)
    if result.outcome in ("fail", "error"):
        told = ET.SubElement(case, "failure" if result.outcome == "fail" else "error", {"message": reason})
        told.text = legal(f"{result.reason}\n\nrun it again: {report.reproduce(result.id)}")
    elif result.outcome != "pass":
        kind = "not applicable: " if result.not_applicable else "xfail: " if result.outcome == "xfail" else ""
        ET.SubElement(case, "skipped", {"message": f"{kind}{reason}"})
