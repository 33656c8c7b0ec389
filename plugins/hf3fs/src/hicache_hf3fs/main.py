"""The command `hicache-hf3fs`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import closing
from importlib.metadata import version

from hicache_core.errors import ConfigError, StorageError
from hicache_core.plugin.sizes import parse_size
from hicache_hf3fs.index.sqlite_index import SqliteIndex
from hicache_hf3fs.root import open_private
from hicache_hf3fs.service import MetadataService

TOKEN_VARIABLE = "HICACHE_HF3FS_TOKEN"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; the exit code: 0, or 2 where something was wrong with what was asked."""
    args = _parser().parse_args(arguments)
    try:
        return _metadata(args)
    except (StorageError, OSError, ValueError) as error:
        sys.stderr.write(f"hicache-hf3fs: {error}\n")
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hicache-hf3fs", description="Tools of the hicache storage backend hf3fs.")
    parser.add_argument("--version", action="version", version=version("hicache-hf3fs"))
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    metadata = commands.add_parser(
        "metadata",
        help="serve the index (which key is in which slot) to several nodes",
        description="Serve the index to several nodes. The pages are not here: every node mounts them itself.",
    )
    metadata.add_argument("--root", required=True, help="directory of the index, on a local disk; made (0700)")
    metadata.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    metadata.add_argument("--port", type=int, default=9700, help="0: any free one (default: %(default)s)")
    metadata.add_argument("--max-size", default=None, help='bytes that all slots may take together, "2TB"')
    metadata.add_argument(
        "--token-file", default=None, help=f"file with the token that clients must send (or set {TOKEN_VARIABLE})"
    )
    metadata.add_argument("--no-token", action="store_true", help="serve other hosts without a token")
    metadata.add_argument(
        "--sync", choices=("none", "full"), default="none", help="full: a commit survives a power cut of this node"
    )
    return parser


def _metadata(args: argparse.Namespace) -> int:
    if not 0 <= args.port <= 65535:
        raise ConfigError(f"--port {args.port} is not a port: 0 to 65535")
    token = _token(args.token_file)
    if token is None and not args.no_token and args.host not in ("127.0.0.1", "::1", "localhost"):
        raise ConfigError(
            f"--host {args.host} can be reached from other hosts: give --token-file (or {TOKEN_VARIABLE}), or "
            "--no-token where the network is trusted"
        )
    max_size = None if args.max_size is None else parse_size(args.max_size)
    directory = open_private("--root", args.root)
    with closing(
        SqliteIndex(directory, max_size=max_size, durable=args.sync == "full", forget=False, terms=True)
    ) as index:
        with MetadataService((args.host, args.port), index, token) as service:
            host, port = service.server_address[:2]
            shown = f"[{host!s}]" if ":" in str(host) else str(host)
            stop = _told_to_stop()
            sys.stdout.write(f"hicache-hf3fs metadata: http://{shown}:{port} store {index.store_id}\n")
            sys.stdout.flush()
            _serve(service, stop)
    return 0


def _told_to_stop() -> threading.Event:
    """Set by SIGTERM and SIGINT."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


def _serve(service: MetadataService, stop: threading.Event) -> None:
    thread = threading.Thread(target=service.serve_forever, name="metadata service", daemon=True)
    thread.start()
    stop.wait()
    service.shutdown()
    thread.join()


def _token(path: str | None) -> str | None:
    if path is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    with open(path, encoding="ascii") as file:
        token = file.read().strip()
    if not token:
        raise ConfigError(f"--token-file {path} is empty")
    return token


if __name__ == "__main__":
    sys.exit(main())
