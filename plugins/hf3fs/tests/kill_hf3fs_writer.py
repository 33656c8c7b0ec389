"""Kill a process that is writing pages, with SIGKILL, at random moments, and look at what it left.

    python kill_hf3fs_writer.py ROOT --rounds 200 [--max-size BYTES] [--page-bytes BYTES] [--seed N] [--url URL]

After every kill the store is opened again: every page that can be read must be whole, and (embedded index) nothing
may be reserved any more and the slots must not have grown. Prints a JSON report; the exit code is 1 where anything
was wrong.
"""

import argparse
import json
import os
import random
import signal
import sys
import threading

from hicache_hf3fs.backend import open_hf3fs
from hicache_hf3fs.options import Hf3fsOptions

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
    backend = open_hf3fs(options, CTX)
    sealer = Sealer(CTX.namespace)
    payloads = [memoryview(random.Random(n).randbytes(nbytes + n % 3 * 5000)) for n in range(8)]

    def work(number):
        rng = random.Random(seed * 2 + number)
        while True:
            keys = [f"{CTX.namespace}/{rng.randrange(KEYS):064x}" for _ in range(8)]
            pages = [sealed(sealer, key, rng.choice(payloads)) for key in keys]
            backend.batch_set(keys, pages, IoContext(replace=rng.random() < 0.3))
            if rng.random() < 0.1:
                backend.delete(keys[:2], IoContext())
            os.write(said, b".")

    threading.Thread(target=work, args=(1,), daemon=True).start()
    work(0)


def check(backend, embedded):
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
    totals = backend.stats()
    if embedded and totals.slots_reserved:
        complaints.append(f"{totals.slots_reserved} slots are still reserved")
    if totals.pages + totals.slots_free + totals.slots_reserved != totals.slots:
        complaints.append(f"slots do not add up: {totals}")
    if totals.slots > 3 * KEYS + 64:
        complaints.append(f"{totals.slots} slots for {KEYS} keys: they grow")
    if totals.max_size is not None and totals.bytes_held > totals.max_size:
        complaints.append(f"{totals.bytes_held} bytes are more than the cap")
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
    parser.add_argument("--page-bytes", type=int, default=20_000)
    parser.add_argument("--max-size", type=int, default=None)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--url")
    parser.add_argument("--token")
    args = parser.parse_args()
    options = Hf3fsOptions(
        root=args.root, max_size=args.max_size, metadata_url=args.url, metadata_token=args.token, io="posix"
    )
    rng = random.Random(args.seed)
    report = {"rounds": args.rounds, "killed": 0, "pages_read": 0, "complaints": []}
    for number in range(args.rounds):
        report["killed"] += kill_one(options, args.page_bytes, args.seed + number, rng)
        backend = open_hf3fs(options, CTX)
        read, complaints = check(backend, args.url is None)
        report["totals"] = str(backend.stats())
        backend.close()
        report["pages_read"] += read
        report["complaints"] += [f"round {number}: {text}" for text in complaints]
    print(json.dumps(report))
    return 1 if report["complaints"] or report["killed"] != args.rounds else 0


if __name__ == "__main__":
    sys.exit(main())
