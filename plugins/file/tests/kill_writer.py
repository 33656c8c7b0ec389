"""Kill a process that is writing pages, with SIGKILL, at random moments, and look at what it left.

    python kill_writer.py ROOT --rounds 200 [--max-size BYTES] [--page-bytes BYTES] [--seed N]

After every kill the store is opened again: every page that can be read must be whole, nothing of the dead writer may
be left, and the account must equal a scan. Prints a JSON report; the exit code is 1 where anything was wrong. The
pages are sealed, so `hicache store verify -b file -o root=ROOT` can judge them again afterwards.
"""

import argparse
import json
import os
import random
import signal
import sys
import threading

from hicache_file.backend import FileBackend, open_file
from hicache_file.offline import usage
from hicache_file.options import FileOptions

from hicache_core.seal import SEAL_BYTES, Sealer, inspect
from hicache_core.types import IoContext, OpenContext, Outcome

CTX = OpenContext(namespace="5" * 32)
KEYS = 400


def sealed(sealer, key, payload):
    """A page of this key: seal, then payload."""
    seal = memoryview(bytearray(SEAL_BYTES))
    sealer.stamp(key, [payload], seal)
    return [seal, payload]


def write_for_ever(options, nbytes, seed, said):
    """What the victim does: batches, replacements and deletions from two threads, telling after each batch."""
    backend = open_file(options, CTX)
    sealer = Sealer(CTX.namespace)
    payloads = [memoryview(random.Random(n).randbytes(nbytes + n * 37)) for n in range(32)]

    def work(number):
        rng = random.Random(seed * 2 + number)
        while True:
            keys = [f"{CTX.namespace}/{rng.randrange(KEYS):064x}" for _ in range(8)]
            replace = rng.random() < 0.3
            pages = [sealed(sealer, key, rng.choice(payloads)) for key in keys]
            backend.batch_set(keys, pages, IoContext(replace=replace))
            if rng.random() < 0.1:
                backend.delete(keys[:2], IoContext())
            os.write(said, b".")

    threading.Thread(target=work, args=(1,), daemon=True).start()
    work(0)


def check(backend: FileBackend, root):
    """(pages read, complaints) of an opened store."""
    complaints, read, cursor = [], 0, None
    while True:
        entries, cursor = backend.scan(None, cursor)
        for key, nbytes, _ in entries:
            buffer = bytearray(nbytes)
            [outcome] = backend.batch_get([key], [[memoryview(buffer)]], IoContext())
            judged = inspect(key, buffer) if outcome is Outcome.HIT else None
            if judged is None or judged.outcome is not Outcome.HIT:
                complaints.append(f"torn page {key}: {judged.reason if judged else outcome.value}, {nbytes} bytes")
            read += 1
        if cursor is None:
            break
    stats, found = backend.stats(), usage(root)
    if (stats.files, stats.bytes_allocated, stats.exact) != (found.files, found.bytes_allocated, True):
        complaints.append(f"account {stats.files} files {stats.bytes_allocated} B, scan {found}")
    if stats.max_size is not None and found.bytes_allocated > stats.max_size:
        complaints.append(f"{found.bytes_allocated} bytes are more than the cap")
    writers = os.listdir(os.path.join(root, "+hicache", "writers"))
    if len(writers) != 1:
        complaints.append(f"writers left over: {writers}")
    return read, complaints


def kill_one(options, nbytes, seed, rng):
    """Start a writer, let it write a little, kill it."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reading)
        try:
            write_for_ever(options, nbytes, seed, writing)
        finally:
            os._exit(3)
    os.close(writing)
    for _ in range(rng.randrange(1, 6)):
        os.read(reading, 1)
    threading.Event().wait(rng.random() * 0.02)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    os.close(reading)
    return os.WIFSIGNALED(status)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--page-bytes", type=int, default=50_000)
    parser.add_argument("--max-size", type=int, default=None)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    options = FileOptions(root=args.root, max_size=args.max_size)
    rng = random.Random(args.seed)
    report = {"rounds": args.rounds, "killed": 0, "pages_read": 0, "temporaries_cleaned": 0, "complaints": []}
    for number in range(args.rounds):
        report["killed"] += kill_one(options, args.page_bytes, args.seed + number, rng)
        backend = open_file(options, CTX)
        read, complaints = check(backend, args.root)
        report["temporaries_cleaned"] += backend.stats().temporaries_cleaned
        backend.close()
        report["pages_read"] += read
        report["complaints"] += [f"round {number}: {text}" for text in complaints]
    left = os.listdir(os.path.join(args.root, "+hicache", "writers"))
    report["complaints"] += [f"at the end {name} is left" for name in left]
    print(json.dumps(report))
    return 1 if report["complaints"] or report["killed"] != args.rounds else 0


if __name__ == "__main__":
    sys.exit(main())
