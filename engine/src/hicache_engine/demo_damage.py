"""What is done to a store, a model or a process in the demo's cases."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np

from .errors import ModelFileError
from .gguf import GGUFFile

KILL_STEP = 0.0002
"""Seconds between two looks at what a process has written."""
KILL_SECONDS = 120.0


def page_files(root: Path) -> list[Path]:
    """The pages that a file store holds, whole ones; temporaries have no page's name."""
    return [p for p in root.rglob("*.kv.l*") if p.is_file()]


def copy_store(source: Path, target: Path) -> Path:
    """A store of one's own to damage."""
    shutil.copytree(source, target, dirs_exist_ok=True)
    return target


def flip_byte(root: Path, page_hash: str) -> Path:
    """Change one bit in the middle of the stored page; which file it was."""
    (path,) = [p for p in page_files(root) if page_hash in p.name]
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 0x10]))
    return path


def perturb_weights(source: Path, target: Path, *, seed: int = 1) -> Path:
    """A copy of a GGUF whose attention norms are off by some percent: other weights of the same shape."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    noise = np.random.default_rng(seed)
    changed = 0
    with GGUFFile(source) as file, target.open("r+b") as out:
        for name, info in file.tensors.items():
            if name.endswith("attn_norm.weight") and info.type_id == 0:
                weights = file.tensor(name)
                out.seek(info.offset)
                out.write((weights * noise.normal(1.0, 0.05, weights.shape)).astype("<f4").tobytes())
                changed += 1
    if not changed:
        raise ModelFileError(f"{source} has no float32 attention norms to perturb")
    return target


def kill_while_writing(process: subprocess.Popen[bytes], root: Path, pages: int) -> int:
    """kill -9 once that many pages have appeared; how many whole ones it left (all: too late).

    Pages take some 30 µs each, less than counting them. So from the first sign of a page on, the process is stopped
    while they are counted and goes on for a moment in between.
    """
    deadline = time.monotonic() + KILL_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        if _has_begun(root):
            process.send_signal(signal.SIGSTOP)
            if len(page_files(root)) >= pages:
                process.send_signal(signal.SIGKILL)
                break
            process.send_signal(signal.SIGCONT)
        time.sleep(KILL_STEP)
    process.kill()
    process.wait()
    return len(page_files(root)) if root.is_dir() else 0


def _has_begun(root: Path) -> bool:
    """Whether the store has the directory of a namespace; its own records are in one that begins with a plus."""
    try:
        with os.scandir(root) as entries:
            return any(not entry.name.startswith("+") for entry in entries)
    except FileNotFoundError:
        return False
