"""What cases are made of: page bytes that follow from the key, buffers with canaries around them, hostile strings."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np

POISON = 0xAA
"""What destinations are filled with before a get."""
CANARY = 0xC5
"""What lies between the buffers; no call may change it."""


def page_bytes(key: str, nbytes: int, version: int = 0) -> bytes:
    """nbytes that follow from key and version alone, so that any process can tell what it reads."""
    seed = hashlib.sha256(f"{version}\0{key}".encode("utf-8", "surrogatepass")).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(seed[:16], "little"))).bytes(nbytes)


class Lent:
    """One page's buffers in memory of their own, each between canaries.

    shape: bytes of each buffer, the seal's first. alignment: of every address, in bytes.
    """

    def __init__(self, shape: Sequence[int], *, alignment: int = 1, fill: int | bytes = POISON) -> None:
        gap = max(64, alignment)
        span = sum(-(-size // gap) * gap + gap for size in shape) + 2 * gap
        self.arena = bytearray(bytes([CANARY])) * span
        base = np.frombuffer(self.arena, dtype=np.uint8).ctypes.data
        at = (-base) % gap + gap
        whole = memoryview(self.arena)
        self.spans: list[tuple[int, int]] = []
        self.buffers: list[memoryview] = []
        for size in shape:
            self.spans.append((at, at + size))
            self.buffers.append(whole[at : at + size])
            at += -(-size // gap) * gap + gap
        if isinstance(fill, bytes):
            self.write(fill)
        else:
            self.write(bytes([fill]) * self.nbytes)

    @property
    def nbytes(self) -> int:
        """Bytes of the page, seal included."""
        return sum(end - start for start, end in self.spans)

    def region(self) -> memoryview:
        """One view from the first buffer to the end of the last, for stores that want memory registered."""
        start, end = (self.spans[0][0], self.spans[-1][1]) if self.spans else (0, 0)
        return memoryview(self.arena)[start:end]

    def write(self, data: bytes) -> None:
        """Put data, of exactly nbytes, into the buffers in order."""
        at = 0
        for start, end in self.spans:
            self.arena[start:end] = data[at : at + end - start]
            at += end - start
        if at != len(data):
            raise ValueError(f"{len(data)} bytes for buffers of {at}")

    def data(self) -> bytes:
        """The buffers' bytes, concatenated."""
        return b"".join(bytes(self.arena[start:end]) for start, end in self.spans)

    def is_poison(self) -> bool:
        """True while no byte of the buffers was changed since they were poisoned."""
        return self.data() == bytes([POISON]) * self.nbytes

    def canaries_intact(self) -> bool:
        """True while nothing outside the buffers was written."""
        rest = bytearray(self.arena)
        for start, end in self.spans:
            rest[start:end] = bytes([CANARY]) * (end - start)
        return rest.count(CANARY) == len(rest)

    def held_elsewhere(self) -> bool:
        """Give our own views back and say whether someone still holds one of the lent ones."""
        for buffer in self.buffers:
            try:
                buffer.release()
            except BufferError:  # a view made from ours, a numpy array or a struct: someone keeps it
                return True
        self.buffers = []
        try:
            self.arena.append(0)  # a bytearray cannot grow while a view of it is alive
        except BufferError:
            return True
        return False


LEGAL_ODD_TAILS = (
    "a",
    "b",
    "aa",
    "aaa",
    "a.b",
    "a-b",
    "a_b",
    "a/b",
    "a/b/c",
    "ab",
    ".a",
    "..a",
    "a.",
    "a..",
    "...",
    "-",
    "_",
    "--",
    "-rf",
    "0",
    "00",
    "-1",
    "1e9",
    "con",
    "nul.txt",
    ".tmp",
    "a.tmp",
    "a.lock",
    "tmp/a",
    "index",
    ".hicache",
    "a.part",
    "none",
    "null",
    "lost-found/a",
)
"""Legal keys that look like something else: temporaries, options, reserved names, prefixes of each other."""

ILLEGAL_KEYS = (
    "",
    "/",
    "//",
    ".",
    "..",
    "/a",
    "{ns}/",
    "{ns}//a",
    "{ns}/./a",
    "{ns}/../a",
    "{ns}/a/..",
    "{ns}/a/.",
    "{ns}/a/",
    "../{ns}/a",
    "../../../../tmp/{ns}",
    "./{ns}/a",
    "/tmp/{ns}/a",
    "{ns}/A",
    "{ns}/a b",
    "{ns}/a\n",
    "{ns}/a\0",
    "\0",
    "{ns}/a\tb",
    "{ns}/a\\b",
    "{ns}/..\\a",
    "{ns}/a:b",
    "{ns}/a*",
    "{ns}/a?",
    "{ns}/~",
    "~/{ns}",
    "$HOME/{ns}",
    "{ns}/%2e%2e/a",
    "{ns}/é",
    "{ns}/٣",
    "{ns}/ａ",
    "{ns}/\ud800",
    "{ns}/\u202e",
    "{ns}/😀",
    "{ns}/{long}",
)
"""Templates of keys outside the rule; {ns} a namespace, {long} enough to pass 200 characters."""


def illegal_keys(namespace: str) -> list[str]:
    """The illegal keys, around one namespace."""
    long = "k" * (201 - len(namespace) - 1)
    return [template.replace("{ns}", namespace).replace("{long}", long) for template in ILLEGAL_KEYS]


def long_tails(namespace: str) -> Iterator[str]:
    """Tails of keys of exactly 200 characters: one segment, many segments, and pairs that differ at the end."""
    room = 200 - len(namespace) - 1
    yield "x" * room
    yield "x" * (room - 1) + "y"
    yield "x" * 64 + "z" * (room - 64)
    deep = "d/" * (room // 2)
    yield (deep[: room - 1] + "e").replace("//", "/d")[:room]
    yield (deep[: room - 1] + "f").replace("//", "/d")[:room]
