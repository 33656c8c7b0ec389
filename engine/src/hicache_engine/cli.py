"""`hicache-engine`: chat with the model, serve it, or show that the cache works."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.markup import escape

from hicache_core.cli.output import Exit, err, out, print_json
from hicache_core.errors import ConfigError, HiCacheError, OpenError

from . import __version__, flags
from .service import SWITCH_INTERVAL
from .settings import EngineOptions

app = typer.Typer(
    name="hicache-engine",
    help="The reference engine of hicache: a real small language model over the whole KV-cache hierarchy.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        out.print(f"hicache-engine {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version and end")
    ] = False,
) -> None:
    """The reference engine of hicache: a real small language model over the whole KV-cache hierarchy."""


@app.command()
def chat(
    model: flags.Model = "smollm2",
    dtype: flags.Dtype = "float32",
    device: flags.Device = "cpu",
    seed: flags.Seed = 0,
    threads: flags.Threads = None,
    chunk: flags.Chunk = 256,
    device_tokens: flags.DeviceTokens = 8192,
    tenant: flags.Tenant = "",
    config: flags.Config = None,
    page_size: flags.PageSize = None,
    hicache_ratio: flags.HostRatio = None,
    hicache_size: flags.HostSize = None,
    hicache_storage_backend: flags.Backend = None,
    option: flags.BackendOptions = None,
    hicache_storage_backend_extra_config: flags.ExtraConfig = None,
    hicache_write_policy: flags.Write = None,
    hicache_storage_prefetch_policy: flags.Prefetch = None,
    prefetch_threshold: flags.PrefetchThreshold = None,
    hicache_mem_layout: flags.Layout = None,
    hicache_io_backend: flags.Io = None,
    eviction_policy: flags.Eviction = None,
    system: Annotated[str | None, typer.Option("--system", help="the system message")] = None,
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", help="one question instead of a conversation; @FILE reads it from a file"),
    ] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="longest answer")] = 256,
    temperature: Annotated[float, typer.Option("--temperature", help="0: the likeliest token")] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object per answer, nothing else")] = False,
) -> None:
    """Talk to the model; after each answer, where the prompt's tokens came from."""
    from .chat import Chat
    from .sampling import SamplingParams

    options = flags.engine_options(
        {
            "page_size": page_size,
            "hicache_ratio": hicache_ratio,
            "hicache_size": hicache_size,
            "hicache_storage_backend": hicache_storage_backend,
            "hicache_storage_backend_extra_config": hicache_storage_backend_extra_config,
            "hicache_write_policy": hicache_write_policy,
            "hicache_storage_prefetch_policy": hicache_storage_prefetch_policy,
            "prefetch_threshold": prefetch_threshold,
            "hicache_mem_layout": hicache_mem_layout,
            "hicache_io_backend": hicache_io_backend,
            "eviction_policy": eviction_policy,
        },
        option=option,
        config=config,
        model=model,
        dtype=dtype,
        device=device,
        seed=seed,
        threads=threads,
        chunk=chunk,
        device_tokens=device_tokens,
        tenant=tenant,
    )
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature)
    question = None if prompt is None else _text(prompt)
    with _started(options, quiet=as_json) as engine:
        talk = Chat(engine, params, system=system, as_json=as_json)
        if question is not None:
            talk.ask(question)
        else:
            talk.loop()


@app.command()
def serve(
    host: Annotated[str, typer.Option("--host", help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="port to listen on; 0: any free one")] = 8000,
    model: flags.Model = "smollm2",
    dtype: flags.Dtype = "float32",
    device: flags.Device = "cpu",
    seed: flags.Seed = 0,
    threads: flags.Threads = None,
    chunk: flags.Chunk = 256,
    max_running: flags.MaxRunning = 8,
    device_tokens: flags.DeviceTokens = 8192,
    tenant: flags.Tenant = "",
    config: flags.Config = None,
    page_size: flags.PageSize = None,
    hicache_ratio: flags.HostRatio = None,
    hicache_size: flags.HostSize = None,
    hicache_storage_backend: flags.Backend = None,
    option: flags.BackendOptions = None,
    hicache_storage_backend_extra_config: flags.ExtraConfig = None,
    hicache_write_policy: flags.Write = None,
    hicache_storage_prefetch_policy: flags.Prefetch = None,
    prefetch_threshold: flags.PrefetchThreshold = None,
    hicache_mem_layout: flags.Layout = None,
    hicache_io_backend: flags.Io = None,
    eviction_policy: flags.Eviction = None,
    cache_report: Annotated[
        bool, typer.Option("--enable-cache-report/--no-cache-report", help="cached tokens by tier in each usage")
    ] = True,
) -> None:
    """Serve the model over HTTP as OpenAI's API does: /v1/chat/completions, /v1/completions, /v1/models, /health."""
    from .serve import serve_forever

    options = flags.engine_options(
        {
            "page_size": page_size,
            "hicache_ratio": hicache_ratio,
            "hicache_size": hicache_size,
            "hicache_storage_backend": hicache_storage_backend,
            "hicache_storage_backend_extra_config": hicache_storage_backend_extra_config,
            "hicache_write_policy": hicache_write_policy,
            "hicache_storage_prefetch_policy": hicache_storage_prefetch_policy,
            "prefetch_threshold": prefetch_threshold,
            "hicache_mem_layout": hicache_mem_layout,
            "hicache_io_backend": hicache_io_backend,
            "eviction_policy": eviction_policy,
        },
        option=option,
        config=config,
        model=model,
        dtype=dtype,
        device=device,
        seed=seed,
        threads=threads,
        chunk=chunk,
        max_running=max_running,
        device_tokens=device_tokens,
        tenant=tenant,
    )
    serve_forever(_started(options), host=host, port=port, report=cache_report)


@app.command()
def demo(
    target: Annotated[Path, typer.Option("--out", help="folder for the store, the cases and report.json")] = Path(
        ".demo"
    ),
    model: flags.Model = "smollm2",
    dtype: flags.Dtype = "float32",
    device: flags.Device = "cpu",
    threads: flags.Threads = None,
    chunk: flags.Chunk = 256,
    page_size: flags.PageSize = None,
    hicache_mem_layout: flags.Layout = None,
    hicache_io_backend: flags.Io = None,
    rounds: Annotated[int, typer.Option("--rounds", help="answers with and without the store, in turn")] = 5,
    min_ratio: Annotated[float, typer.Option("--min-ratio", help="cold / warm time to first token, at least")] = 8.0,
    as_json: Annotated[bool, typer.Option("--json", help="the report as JSON on standard output")] = False,
) -> None:
    """Show that one process answers from the pages of another, dead one, and that damage costs only time.

    Exit code 1 where any check failed.
    """
    from .demo import Demo
    from .demo_table import show

    options = flags.engine_options(
        {
            "page_size": page_size,
            "hicache_mem_layout": hicache_mem_layout,
            "hicache_io_backend": hicache_io_backend,
            "hicache_storage_prefetch_policy": "wait_complete",
        },
        model=model,
        dtype=dtype,
        device=device,
        threads=threads,
        chunk=chunk,
    )
    console = err if as_json else out
    with console.status("starting") as status:

        def say(step: str) -> None:
            status.update(step)
            console.print(f"[dim]· {escape(step)}[/]")

        report = Demo(target, options, rounds=rounds, min_ratio=min_ratio, say=say).run()
    if as_json:
        print_json(report)
    else:
        show(report, target / "report.json")
    if not report["ok"]:
        raise typer.Exit(Exit.FAILED)


def _started(options: EngineOptions, *, quiet: bool = False) -> Any:
    with err.status(f"loading {options.model}"):
        engine = options.build()
    if not quiet:
        store = options.cache.hicache_storage_backend or "none"
        what = (
            f"{engine.model.name}, {options.dtype} on {options.device}, page {options.cache.page_size}, L3: {store}"
        )
        err.print(f"[dim]{escape(what)}[/]")
    return engine


def _text(given: str) -> str:
    if not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--prompt {given}: {error}") from error


def main() -> None:
    """Run the command line; an error of ours is one clear message and an exit code, not a traceback."""
    sys.setswitchinterval(SWITCH_INTERVAL)
    try:
        app()
    except OpenError as error:
        err.print(f"[bold red]error:[/] {escape(str(error))}")
        sys.exit(Exit.STORE)
    except (HiCacheError, msgspec.ValidationError) as error:
        err.print(f"[bold red]error:[/] {escape(str(error))}")
        sys.exit(Exit.USAGE)
    except KeyboardInterrupt:
        sys.exit(130)
