"""A finding in a few lines that a maintainer runs with nothing but the engine. Kept beside this module as files.

`reproductions/KIT/CASE.py.txt` begins with a comment that says what it prints; a test runs each and compares.
"""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).resolve().parent / "reproductions"
_PRINTS = "# prints: "
_ENDING = ".py.txt"


def reproduction_of(kit: str, case: str) -> str | None:
    """The program's text, or None."""
    path = _HERE / kit / f"{case}{_ENDING}"
    return path.read_text() if path.is_file() else None


def reproductions() -> list[tuple[str, str, Path]]:
    """(kit, case, file) of each."""
    found = sorted(_HERE.glob(f"*/*{_ENDING}"))
    return [(path.parent.name, path.name.removesuffix(_ENDING), path) for path in found]


def promised_output(text: str) -> str:
    """What its leading comments say it prints."""
    lines = [line.removeprefix(_PRINTS) for line in text.splitlines() if line.startswith(_PRINTS)]
    return "".join(f"{line}\n" for line in lines)
