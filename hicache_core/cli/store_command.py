"""`hicache store`: look after what a store holds, from outside."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import msgspec
import typer
from rich.markup import escape

from hicache_core.cli.choices import AsJson, Assignments, Backend, chosen
from hicache_core.cli.output import Exit, err, out, print_json, progress, table
from hicache_core.errors import ConfigError
from hicache_core.offline.gc import GcResult, GcRule, choose, parse_age, remove
from hicache_core.offline.raw import RawStore, StoredObject
from hicache_core.offline.verify import Tally, verify
from hicache_core.plugin.sizes import format_size

group = typer.Typer(help="A store's content: list, count, verify, collect.", no_args_is_help=True)

Namespace = Annotated[str | None, typer.Option("--namespace", "-n", help="this namespace only (32 hex digits)")]

MacKeyFile = Annotated[typer.FileBinaryRead | None, typer.Option(help="file with the key of seals with a MAC")]


def register(app: typer.Typer) -> None:
    """Add the commands to `hicache`."""
    app.add_typer(group, name="store")


@group.command("ls")
def ls(
    backend: Backend,
    option: Assignments = None,
    namespace: Namespace = None,
    limit: Annotated[int, typer.Option(help="stop after so many; 0: all", min=0)] = 0,
    as_json: AsJson = False,
) -> None:
    """Every object: key, stored bytes (seal included), age."""
    with RawStore(chosen(backend, option)) as store:
        found = _first(store.scan(namespace), limit)
        if as_json:
            print_json([{"key": o.key, "nbytes": o.nbytes, "mtime": o.mtime} for o in found])
            return
        now, stored = time.time(), None
        for stored in found:
            line = f"{format_size(stored.nbytes):>10}  {_age(now - stored.mtime):>6}  {stored.key}"
            out.print(line, markup=False, soft_wrap=True)  # one object a line, also in a pipe
        if stored is None:
            err.print(_nothing(namespace))


@group.command("stat")
def stat(backend: Backend, option: Assignments = None, namespace: Namespace = None, as_json: AsJson = False) -> None:
    """Namespaces with pages, bytes and age, and the store's own counters."""
    now = time.time()
    with RawStore(chosen(backend, option)) as store:
        rows: dict[str, dict[str, Any]] = {}
        for stored in _counted(store.scan(namespace), "counting"):
            row = rows.setdefault(stored.namespace, {"pages": 0, "nbytes": 0, "oldest": now, "newest": 0.0})
            row["pages"] += 1
            row["nbytes"] += stored.nbytes
            row["oldest"], row["newest"] = min(row["oldest"], stored.mtime), max(row["newest"], stored.mtime)
        counters = msgspec.to_builtins(store.stats())
    if as_json:
        print_json({"namespaces": rows, "stats": counters})
        return
    shown = [
        (name, row["pages"], format_size(row["nbytes"]), _age(now - row["oldest"]), _age(now - row["newest"]))
        for name, row in sorted(rows.items())
    ]
    out.print(table("Namespaces", ("namespace", "pages", "bytes", "oldest", "newest"), shown, right=(1, 2, 3, 4)))
    if counters:
        out.print(table("The store's own counters", ("name", "value"), sorted(counters.items()), right=(1,)))


@group.command("du")
def du(backend: Backend, option: Assignments = None, namespace: Namespace = None, as_json: AsJson = False) -> None:
    """Bytes by namespace and pool."""
    sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    with RawStore(chosen(backend, option)) as store:
        for stored in _counted(store.scan(namespace), "adding up"):
            entry = sums[stored.namespace, stored.pool]
            entry[0] += 1
            entry[1] += stored.nbytes
    rows = sorted(sums.items(), key=lambda item: -item[1][1])
    total = sum(nbytes for _, (_, nbytes) in rows)
    if as_json:
        print_json(
            {
                "total_bytes": total,
                "rows": [
                    {"namespace": space, "pool": pool, "pages": pages, "nbytes": nbytes}
                    for (space, pool), (pages, nbytes) in rows
                ],
            }
        )
        return
    shown = [(space, pool, pages, format_size(nbytes)) for (space, pool), (pages, nbytes) in rows]
    out.print(table(f"{format_size(total)} in all", ("namespace", "pool", "pages", "bytes"), shown, right=(2, 3)))


@group.command("verify")
def verify_store(
    backend: Backend,
    option: Assignments = None,
    namespace: Namespace = None,
    mac_key_file: MacKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Read every page and judge it by its seal. Exit code 1 where one is damaged, misplaced or unreadable."""
    tally, bad = Tally(), []
    mac_key = mac_key_file.read() if mac_key_file else None
    with RawStore(chosen(backend, option)) as store:
        objects = list(_counted(store.scan(namespace), "listing"))
        with progress() as bar:
            for verdict in bar.track(verify(store, objects, mac_key=mac_key), len(objects), description="verify"):
                tally.add(verdict)
                if verdict.reason:
                    bad.append(verdict)
    if as_json:
        print_json({"clean": tally.clean, **msgspec.to_builtins(tally), "bad": bad})
    else:
        rows = [(name, value) for name, value in msgspec.structs.asdict(tally).items() if name != "nbytes"]
        out.print(table(f"Verified {format_size(tally.nbytes)}", ("", "objects"), rows, right=(1,)))
        for verdict in bad:
            line = f"[red]{verdict.outcome.value}[/] {escape(verdict.key)}: {escape(verdict.reason)}"
            out.print(line, soft_wrap=True)
        out.print("[green]clean[/]" if tally.clean else "[red]not clean[/]; the next write of a page replaces it")
    if not tally.clean:
        raise typer.Exit(Exit.FAILED)


@group.command("gc")
def gc(
    backend: Backend,
    option: Assignments = None,
    namespace: Annotated[
        list[str] | None, typer.Option("--namespace", "-n", help="remove this namespace whole; repeatable")
    ] = None,
    older_than: Annotated[str | None, typer.Option(help="remove pages not written or read since: 30d, 12h")] = None,
    corrupt: Annotated[bool, typer.Option("--corrupt", help="remove pages that do not verify")] = False,
    mac_key_file: MacKeyFile = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what would go")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove namespaces, old pages, or damaged pages: whatever any of the rules given names."""
    age = parse_age(older_than) if older_than else None
    rule = GcRule(frozenset(namespace or ()), age, corrupt, mac_key_file.read() if mac_key_file else None)
    if not rule:
        raise ConfigError("gc was told nothing to remove; give --namespace, --older-than or --corrupt")
    result = GcResult()
    with RawStore(chosen(backend, option)) as store:
        objects = list(_counted(store.scan(None), "listing"))
        result.scanned = len(objects)
        for absent in sorted(rule.namespaces - {stored.namespace for stored in objects}):
            err.print(_nothing(absent))
        with progress() as bar:
            tracked = bar.track(objects, description="collect")
            picked = choose(store, tracked, rule, time.time(), result)
            if dry_run:
                for stored in picked:
                    result.chosen += 1
                    result.chosen_bytes += stored.nbytes
            else:
                remove(store, picked, result)
    if as_json:
        print_json({"dry_run": dry_run, **msgspec.to_builtins(result)})
    else:
        verb = "would remove" if dry_run else "removed"
        count = result.chosen if dry_run else result.removed
        out.print(f"{verb} {count} of {result.scanned} objects ({format_size(result.chosen_bytes)})")
        if result.undecided:
            err.print(
                f"{result.undecided} look damaged and stay: they changed meanwhile, or nothing in their namespace "
                "verifies here (never sealed, or sealed with a key: --mac-key-file). --namespace removes one whole."
            )
        for key in result.failed:
            err.print(f"[red]not removed[/] {escape(key)}", soft_wrap=True)
    if result.failed:
        raise typer.Exit(Exit.FAILED)


def _first(objects: Iterator[StoredObject], limit: int) -> Iterator[StoredObject]:
    for count, stored in enumerate(objects, 1):
        yield stored
        if count == limit:
            return


def _nothing(namespace: str | None) -> str:
    """What to say, on standard error, where no page was found."""
    where = "in this store" if namespace is None else f"under the namespace {escape(repr(namespace))}"
    return f"no pages are stored {where}"


def _counted(objects: Iterable[StoredObject], what: str) -> Iterator[StoredObject]:
    """The same objects, with a running count on a terminal."""
    with progress() as bar:
        yield from bar.track(objects, description=what, total=None)


def _age(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{max(0.0, seconds):.0f}s"
