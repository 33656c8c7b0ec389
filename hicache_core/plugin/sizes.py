"""Sizes in bytes as people write them."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, TypeAlias

from msgspec import Meta

ByteSize: TypeAlias = Annotated[int, Meta(extra={"unit": "bytes"})]
"""Option type: an int, or text such as "10GB" (10^9) or "1.5GiB" (2^30)."""

_POWERS = "kmgtp"
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(?:([kmgtp]?)(i?)b)?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes in "4096", "64KiB", "1.5 GB". Raises ValueError; a bare "10G" is refused, since it may mean either."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(
            f"{text!r} is no size; write bytes, or a number with KB, MB, GB, TB (10^3) or KiB … TiB (2^10)"
        )
    number, power, binary = found.groups()
    if binary and not power:
        raise ValueError(f"{text!r} is no size; write KiB, MiB, GiB or TiB")
    exponent = _POWERS.index(power.lower()) + 1 if power else 0
    return int(Decimal(number) * (1024 if binary else 1000) ** exponent)


def format_size(nbytes: int) -> str:
    """Bytes for people: "512 B", "1.5 GiB" (powers of 2^10)."""
    value, power = float(nbytes), 0
    while abs(value) >= 1024 and power < len(_POWERS):
        value, power = value / 1024, power + 1
    return f"{value:.4g} {_POWERS[power - 1].upper()}iB" if power else f"{nbytes} B"
