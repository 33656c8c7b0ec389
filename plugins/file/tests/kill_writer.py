"""Kill a process that is writing pages, with SIGKILL, at random moments, and look at what it left.

    python kill_writer.py ROOT --rounds 200 [--max-size BYTES] [--page-bytes BYTES] [--seed N]

After every kill the store is opened again: every page that can be read must be whole, nothing of the dead writer may
be left, and the account must equal a scan. Prints a JSON report; the exit code is 1 where anything was wrong. The
pages are sealed, so `hicache store verify -b file -o root=ROOT` can judge them again afterwards.
"""

import json
import os
import sys
from dataclasses import asdict

from hicache_conformance.writer_kills import kill_arguments, kill_writers
from hicache_file.backend import FileBackend, open_file
from hicache_file.offline import usage
from hicache_file.options import FileOptions


class Auditor:
    """Compares the account of a store with what lies in its root."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.temporaries_cleaned = 0

    def writers(self) -> list[str]:
        return os.listdir(os.path.join(self.root, "+hicache", "writers"))

    def __call__(self, backend: FileBackend) -> list[str]:
        complaints = []
        stats, found = backend.stats(), usage(self.root)
        self.temporaries_cleaned += stats.temporaries_cleaned
        if (stats.files, stats.bytes_allocated, stats.exact) != (found.files, found.bytes_allocated, True):
            complaints.append(f"account {stats.files} files {stats.bytes_allocated} B, scan {found}")
        if stats.max_size is not None and found.bytes_allocated > stats.max_size:
            complaints.append(f"{found.bytes_allocated} bytes are more than the cap")
        if len(self.writers()) != 1:
            complaints.append(f"writers left over: {self.writers()}")
        return complaints


def main() -> int:
    args = kill_arguments(__doc__, page_bytes=50_000).parse_args()
    options = FileOptions(root=args.root, max_size=args.max_size)
    auditor = Auditor(args.root)
    sizes = [args.page_bytes + n * 37 for n in range(32)]
    report = kill_writers(
        lambda ctx: open_file(options, ctx), auditor, sizes=sizes, rounds=args.rounds, seed=args.seed
    )
    report.complaints += [f"at the end {name} is left" for name in auditor.writers()]
    print(json.dumps({**asdict(report), "temporaries_cleaned": auditor.temporaries_cleaned}))
    return int(report.failed)


if __name__ == "__main__":
    sys.exit(main())
