"""Kill a process that is writing pages, with SIGKILL, at random moments, and look at what it left.

    python kill_hf3fs_writer.py ROOT --rounds 200 [--max-size BYTES] [--page-bytes BYTES] [--seed N] [--url URL]

After every kill the store is opened again: every page that can be read must be whole, and (embedded index) nothing
may be reserved any more and the slots must not have grown. Prints a JSON report; the exit code is 1 where anything
was wrong.
"""

import json
import sys
from dataclasses import asdict

from hicache_conformance.writer_kills import KEYS, kill_arguments, kill_writers
from hicache_hf3fs.backend import Hf3fsBackend, open_hf3fs
from hicache_hf3fs.options import Hf3fsOptions


class Auditor:
    """Adds up the slots of a store. embedded: its index is its own, so no one else may have reserved any."""

    def __init__(self, embedded: bool) -> None:
        self.embedded = embedded
        self.totals = ""

    def __call__(self, backend: Hf3fsBackend) -> list[str]:
        complaints, totals = [], backend.stats()
        self.totals = str(totals)
        if self.embedded and totals.slots_reserved:
            complaints.append(f"{totals.slots_reserved} slots are still reserved")
        if totals.pages + totals.slots_free + totals.slots_reserved != totals.slots:
            complaints.append(f"slots do not add up: {totals}")
        if totals.slots > 3 * KEYS + 64:
            complaints.append(f"{totals.slots} slots for {KEYS} keys: they grow")
        if totals.max_size is not None and totals.bytes_held > totals.max_size:
            complaints.append(f"{totals.bytes_held} bytes are more than the cap")
        return complaints


def main() -> int:
    parser = kill_arguments(__doc__, page_bytes=20_000)
    parser.add_argument("--url")
    parser.add_argument("--token")
    args = parser.parse_args()
    options = Hf3fsOptions(
        root=args.root, max_size=args.max_size, metadata_url=args.url, metadata_token=args.token, io="posix"
    )
    auditor = Auditor(embedded=args.url is None)
    sizes = [args.page_bytes + n % 3 * 5000 for n in range(8)]
    report = kill_writers(
        lambda ctx: open_hf3fs(options, ctx), auditor, sizes=sizes, rounds=args.rounds, seed=args.seed
    )
    print(json.dumps({**asdict(report), "totals": auditor.totals}))
    return int(report.failed)


if __name__ == "__main__":
    sys.exit(main())
