"""A badge: which levels a backend has earned, as one small SVG without anything outside it."""

from __future__ import annotations

from xml.sax.saxutils import escape

from hicache_conformance.junit import legal
from hicache_conformance.report import Report

_GREEN, _RED, _GREY, _AMBER, _DARK = "#1a7f37", "#b42318", "#6e7781", "#9a6700", "#3d444d"
_NARROW, _WIDE = frozenset("ijlt.,:;!|'()[]1 fr"), frozenset("mwMW@%—")
_PADDING, _HEIGHT = 7, 20


def to_badge(report: Report) -> str:
    """The SVG. A level counts where every case of it passed; a failing level and a fake store are named."""
    failing = [level for level, mark in report.levels.items() if mark == "fail"]
    parts = [(report.backend, _DARK)]
    if report.earned:
        parts.append((" · ".join(report.earned), _GREEN))
    if failing:
        parts.append((f"fails {' · '.join(failing)}", _RED))
    if not report.earned and not failing:
        parts.append(("no level earned", _GREY))
    if report.fake:
        parts.append(("fake store", _AMBER))
    return _svg([(escape(legal(text)), _width(text), colour) for text, colour in parts])


def _svg(parts: list[tuple[str, int, str]]) -> str:
    said = f"hicache conformance: {', '.join(text for text, _, _ in parts)}"
    total = sum(width + 2 * _PADDING for _, width, _ in parts)
    boxes, words, at = [], [], 0
    for text, width, colour in parts:
        room = width + 2 * _PADDING
        boxes.append(f'<rect x="{at}" width="{room}" height="{_HEIGHT}" fill="{colour}"/>')
        words.append(f'<text x="{at + _PADDING}" y="14" textLength="{width}">{text}</text>')
        at += room
    quoted = said.replace('"', "&quot;")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total}" height="{_HEIGHT}" role="img"'
        f' aria-label="{quoted}">\n<title>{said}</title>\n'
        f'<clipPath id="round"><rect width="{total}" height="{_HEIGHT}" rx="3"/></clipPath>\n'
        f'<g clip-path="url(#round)">{"".join(boxes)}</g>\n'
        f'<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">{"".join(words)}</g>\n</svg>\n'
    )


def _width(text: str) -> int:
    """About what the text takes at 11 px; `textLength` makes it exact."""
    return round(sum(4.2 if c in _NARROW else 9.5 if c in _WIDE else 7.0 for c in text))
