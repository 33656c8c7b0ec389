"""`hicache replay`: a trace through the whole hierarchy, every page checked."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from hicache_core.cli.choices import Assignments, JsonFile, chosen
from hicache_core.cli.output import Exit, err, out, progress, table, write_json
from hicache_core.config.model import LayoutName, PrefetchPolicy, WritePolicy
from hicache_core.errors import NotSupportedError
from hicache_core.hicache import HiCache
from hicache_core.plugin.select import BackendChoice
from hicache_core.plugin.sizes import format_size
from hicache_core.pools.device.numpy_pool import NumpyDevicePool
from hicache_core.pools.sizing import check_capacity
from hicache_core.replay.result import ReplayResult
from hicache_core.replay.runner import Replay, ReplaySettings
from hicache_core.replay.trace import TraceRequest, read_trace
from hicache_core.storage.settings import MOST_WORKERS

PROGRESS_STEP = 50


def register(app: typer.Typer) -> None:
    """Add the command to `hicache`."""
    app.command("replay")(replay)


def replay(
    trace: Annotated[Path, typer.Argument(metavar="TRACE.jsonl", help="requests, one JSON object per line")],
    backend: Annotated[
        str | None, typer.Option("--backend", "-b", help="L3: a backend's name, or a URL; none: L1 and L2 alone")
    ] = None,
    option: Assignments = None,
    l1_pages: Annotated[int, typer.Option(help="device pool, in pages", min=1)] = 2000,
    l2_pages: Annotated[int, typer.Option(help="host pool, in pages", min=1)] = 8000,
    page_bytes: Annotated[int, typer.Option(help="bytes of a page's KV", min=1)] = 4096,
    page_tokens: Annotated[int, typer.Option(help="tokens of a block of the trace", min=1)] = 512,
    write_policy: Annotated[WritePolicy, typer.Option(help="when pages go to L2 and L3")] = "write_through",
    prefetch_policy: Annotated[
        PrefetchPolicy, typer.Option(help="how long a request waits for L3")
    ] = "wait_complete",
    eviction: Annotated[str, typer.Option(help="eviction policy of L1 and L2")] = "lru",
    layout: Annotated[LayoutName, typer.Option(help="byte order of a page in L2 and L3")] = "page_first",
    drain: Annotated[bool, typer.Option("--drain", help="finish and back up each request before the next")] = False,
    limit: Annotated[int | None, typer.Option(help="replay only so many requests", min=1)] = None,
    seed: Annotated[int, typer.Option(help="another seed: the same trace with other tokens")] = 0,
    name: Annotated[
        str | None,
        typer.Option(help="keep pages apart by this name; the same name finds them again; default: a new one"),
    ] = None,
    clear: Annotated[
        bool, typer.Option("--clear", help="remove this replay's pages from the store at the end")
    ] = False,
    workers: Annotated[int, typer.Option(help="I/O threads per direction", min=1, max=MOST_WORKERS)] = 2,
    timeout: Annotated[float, typer.Option(help="seconds, deadline of one call of L3", min=0.001)] = 10.0,
    json_path: JsonFile = None,
) -> None:
    """Replay a trace through L1, L2 and L3, and compare every page that comes back with what it must hold.

    Exit code 1 where a page was wrong, or the books do not balance.
    """
    settings = ReplaySettings(
        l1_pages=l1_pages,
        l2_pages=l2_pages,
        page_bytes=page_bytes,
        page_tokens=page_tokens,
        write_policy=write_policy,
        prefetch_policy=prefetch_policy,
        eviction_policy=eviction,
        layout=layout,
        drain=drain,
        seed=seed,
        storage_workers=workers,
        storage_timeout=timeout,
    )
    requests = read_trace(trace, limit)
    choice = None if backend is None else chosen(backend, option)
    run_name = name or f"replay-{secrets.token_hex(8)}"
    result = _run(settings, requests, choice, run_name, clear=clear)
    if json_path != "-":
        _show(result)
    if json_path is not None:
        write_json(result.as_dict() | {"trace": str(trace), "name": run_name}, json_path)
    if not result.sound:
        raise typer.Exit(Exit.FAILED)


def _run(
    settings: ReplaySettings,
    requests: Sequence[TraceRequest],
    choice: BackendChoice | None,
    name: str,
    *,
    clear: bool,
) -> ReplayResult:
    logging.getLogger("hicache_core").setLevel(logging.CRITICAL)  # faults are counted, in the report
    cache = open_cache(settings, choice, name)
    try:
        with _progress(len(requests)) as on_request:
            result = Replay(cache, settings).run(requests, on_request)
        if clear and cache.session is not None:
            _clear(cache)
    finally:
        cache.shutdown()
    return result


def open_cache(settings: ReplaySettings, choice: BackendChoice | None, name: str) -> HiCache:
    """The hierarchy of a replay. Raises ConfigError, CapacityError, PluginError, OpenError."""
    geometry = settings.geometry()
    check_capacity(
        geometry.page_nbytes * (settings.l1_pages + settings.l2_pages),
        what="L1 and L2 together",
        mend=f"Ask for less than {settings.l1_pages:,} + {settings.l2_pages:,} pages of {settings.page_bytes} bytes.",
    )
    device_pool = NumpyDevicePool(geometry, settings.l1_pages)
    cache = HiCache.build(settings.config(), device_pool=device_pool, host_pages=settings.l2_pages)
    if choice is not None:
        try:
            cache.attach_storage_backend(choice, identity=settings.identity(name))
        except BaseException:
            cache.shutdown(1.0)
            raise
    return cache


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """A bar over the requests. It is told of some of them only: telling costs as much as a request."""
    with progress() as bar:
        task = bar.add_task("replay", total=total)

        def step(done: int) -> None:
            if done % PROGRESS_STEP == 0 or done == total:
                bar.update(task, completed=done)

        yield step


def _clear(cache: HiCache) -> None:
    try:
        err.print(f"removed {cache.clear():,} pages from the store")
    except NotSupportedError as error:
        err.print(f"[yellow]not removed:[/] {error}")


def _show(result: ReplayResult) -> None:
    total = result.pages_total or 1

    def row(label: str, pages: int) -> tuple[str, str, str]:
        return label, f"{pages:,}", f"{100 * pages / total:.2f} %"

    tiers = result.hit_pages_by_tier
    rows = [row(f"hits in {tier}", pages) for tier, pages in tiers.items()]
    rows += [
        row("hits in all", result.prefix_hit_pages),
        row("unlimited storage would have", result.oracle_hit_pages),
    ]
    rows += [row(f"lost: {reason}", pages) for reason, pages in sorted(result.lost_by_reason.items())]
    if result.extra_hit_pages:
        rows.append(row("from earlier replays", result.extra_hit_pages))
    rows.append(row("wrong", result.wrong_pages))
    out.print(
        table(
            f"{result.requests:,} requests, {result.pages_total:,} pages", ("", "pages", "share"), rows, right=(1, 2)
        )
    )
    moved = ", ".join(f"{name.replace('_', ' ')} {format_size(count)}" for name, count in result.bytes_moved.items())
    out.print(f"{result.requests_per_second:,.0f} requests/s ({result.seconds:.1f} s); moved: {moved}")
    ledger = "balanced" if result.ledger.get("balanced") else f"[bold red]NOT balanced[/]: {result.ledger}"
    verdict = "" if not result.wrong_pages else f", [bold red]{result.wrong_pages} wrong pages[/]"
    out.print(f"ledger {ledger}; {result.checked_pages:,} pages compared{verdict}")
