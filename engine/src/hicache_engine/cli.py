"""`hicache-engine`: chat with the model, serve it, name what its pages depend on, or show that the cache works."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.markup import escape

from hicache_core.cli.output import Exit, err, out, print_json, write_json
from hicache_core.cli.running import run
from hicache_core.errors import ConfigError
from hicache_core.plugin.options import split_assignments

from . import __version__, flags
from .settings import EngineOptions

app = typer.Typer(
    name="hicache-engine",
    help="The reference engine of hicache: a real small language model over the whole KV-cache hierarchy.",
    no_args_is_help=True,
    rich_markup_mode=None,  # its tables cut long flags off in 80 columns
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


@app.command(short_help="talk to the model in the terminal")
@flags.takes_engine_options(without=("max_running", "enable_cache_report"))
def chat(
    options: EngineOptions,
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

    params = SamplingParams(max_tokens=max_tokens, temperature=temperature)
    question = None if prompt is None else _text(prompt)
    if system is not None:
        _utf8(system, "--system")
    with _started(options, quiet=as_json) as engine:
        talk = Chat(engine, params, system=system, as_json=as_json)
        if question is not None:
            talk.ask(question)
        else:
            talk.loop()


@app.command(short_help="serve it over HTTP as OpenAI's API does")
@flags.takes_engine_options()
def serve(
    options: EngineOptions,
    host: Annotated[str, typer.Option("--host", help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="port to listen on; 0: any free one", min=0, max=65535)] = 8000,
) -> None:
    """Serve the model over HTTP as OpenAI's API does: /v1/chat/completions, /v1/completions, /v1/models, /health."""
    from .serve import serve_forever

    serve_forever(_started(options), host=host, port=port, report=options.cache.enable_cache_report)


@app.command(short_help="what stored pages depend on, for `hicache explain`")
@flags.takes_engine_options(without=("max_running", "enable_cache_report"))
def identity(options: EngineOptions) -> None:
    """What the stored pages of this engine depend on, as JSON: what `hicache explain --identity` reads."""
    with _started(options, quiet=True) as engine:
        session = engine.cache.session
        print_json(dataclasses.asdict(engine.identity if session is None else session.identity))


@app.command(short_help="token ids of a prompt, for `hicache explain`")
def tokens(
    prompt: Annotated[str, typer.Argument(metavar="TEXT", help="the question; @FILE reads it from a file")],
    model: Annotated[str, typer.Option("--model", help="smollm2, random, or the path of a Llama GGUF")] = "smollm2",
    system: Annotated[str | None, typer.Option("--system", help="the system message")] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="the text as it is, without the chat template: what /v1/completions reads")
    ] = False,
) -> None:
    """Token ids of a question as chat asks it, as JSON: what `hicache explain --tokens` reads."""
    from .loading import load_tokenizer

    text, tokenizer = _text(prompt, "TEXT"), load_tokenizer(model)
    if not raw:
        opening = [{"role": "system", "content": system}] if system else []
        text = tokenizer.render([*opening, {"role": "user", "content": text}])
    out.out(msgspec.json.encode(tokenizer.encode(text).tolist()).decode())


@app.command(short_help="a process answers from the pages of a dead one")
@flags.takes_engine_options(
    only=("model", "dtype", "device", "threads", "chunk", "page_size", "hicache_mem_layout", "hicache_io_backend"),
    hicache_storage_prefetch_policy="wait_complete",
)
def demo(
    options: EngineOptions,
    target: Annotated[Path, typer.Option("--out", help="folder for the store, the cases and report.json")] = Path(
        ".demo"
    ),
    rounds: Annotated[int, typer.Option("--rounds", help="answers with and without the store, in turn")] = 5,
    min_ratio: Annotated[float, typer.Option("--min-ratio", help="cold / warm time to first token, at least")] = 8.0,
    backend: Annotated[
        str, typer.Option("--backend", help="the store; without -o a throwaway one is made, or its server started")
    ] = "file",
    option: Annotated[
        list[str] | None,
        typer.Option("-o", "--option", metavar="NAME=VALUE", help="an option of a store that is there; repeat it"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="the report as JSON on standard output")] = False,
) -> None:
    """Show that one process answers from the pages of another, dead one, and that damage costs only time.

    Without --backend the store is a directory below --out; with one, a throwaway store is made or its server started,
    unless -o says which to use. Exit code 1 where any check failed.
    """
    from .demo import Demo
    from .demo_table import show

    console = err if as_json else out
    with console.status("starting") as status:

        def say(step: str) -> None:
            status.update(step)
            console.print(f"[dim]· {escape(step)}[/]")

        report = Demo(
            target,
            options,
            rounds=rounds,
            min_ratio=min_ratio,
            say=say,
            backend=backend,
            store_options=split_assignments(option or ()),
        ).run()
    if as_json:
        print_json(report)
    else:
        show(report, target / "report.json")
    if not report["ok"]:
        raise typer.Exit(Exit.FAILED)


@app.command(short_help="kill the store's server under the engine")
@flags.takes_engine_options(
    only=("model", "dtype", "device", "threads", "chunk", "page_size", "hicache_storage_prefetch_policy"),
)
def outage(
    options: EngineOptions,
    backend: Annotated[str, typer.Argument(help="a store with a dev server: mooncake, s3")],
    target: Annotated[Path, typer.Option("--out", help="folder for the server and report.json")] = Path(".outage"),
    down: Annotated[float, typer.Option("--down", help="seconds between kill -9 and restart", min=0.0)] = 20.0,
    patience: Annotated[float, typer.Option("--patience", help="seconds after it in which hits must return")] = 30.0,
    as_json: Annotated[bool, typer.Option("--json", help="the report as JSON on standard output")] = False,
) -> None:
    """Serve a loop of prompts while the store's server is killed with -9 and started again later.

    No request may fail, no text be wrong, misses may cost no more than without L3, and hits must return by
    themselves. Exit code 1 where any check failed.
    """
    from .demo_table import show_outage
    from .outage import Outage

    console = err if as_json else out
    report = Outage(
        target,
        options,
        backend,
        down=down,
        patience=patience,
        say=lambda step: console.print(f"[dim]· {escape(step)}[/]"),
    ).run()
    write_json(report, str(target / "report.json"))
    if as_json:
        print_json(report)
    else:
        show_outage(report, target / "report.json")
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


def _text(given: str, where: str = "--prompt") -> str:
    try:
        if given.startswith("@"):
            return Path(given[1:]).read_text(encoding="utf-8")
        return _utf8(given, where)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where} {given}: {error}") from error


def _utf8(given: str, where: str) -> str:
    try:
        given.encode()
    except UnicodeEncodeError as error:  # bytes of the command line that are no text
        raise ConfigError(f"{where} is not UTF-8: {error}") from error
    return given


def main() -> None:
    """Run the command line."""
    run(app, msgspec.ValidationError)
