"""What is done to a store, a model or a process in the demo's cases."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np

from .demo_store import Place, Shelf
from .errors import ModelFileError
from .gguf import GGUFFile

KILL_STEP = 0.0002
"""Seconds between two looks at what a process has written."""
KILL_SECONDS = 120.0


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


def kill_while_writing(process: subprocess.Popen[bytes], shelf: Shelf, place: Place, pages: int) -> int:
    """kill -9 once that many pages have appeared; how many whole ones it left (all: too late).

    Pages take some 30 µs each, less than counting them. So from the first sign of a page on, the process is stopped
    while they are counted and goes on for a moment in between.
    """
    deadline = time.monotonic() + KILL_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        if shelf.begun(place):
            process.send_signal(signal.SIGSTOP)
            if shelf.pages(place) >= pages:
                process.send_signal(signal.SIGKILL)
                break
            process.send_signal(signal.SIGCONT)
        time.sleep(KILL_STEP)
    process.kill()
    process.wait()
    return shelf.pages(place)
