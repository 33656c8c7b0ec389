"""`hicache conformance`: judge a backend with the shared suite, which is a distribution of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, TypeAlias

import typer
from typer.core import TyperCommand

from hicache_core.cli.choices import Assignments, JsonFile
from hicache_core.cli.output import check_report_file
from hicache_core.errors import ConfigError, MissingDependencyError
from hicache_core.plugin.options import split_assignments

BADGE = "hicache-badge.svg"
INSTALL = "pip install hicache-conformance"


def register(app: typer.Typer) -> None:
    """Add the command to `hicache`."""
    app.command("conformance", cls=_Command)(conformance)


class _Command(TyperCommand):
    """`--badge` may stand without a file; click knows options with a value that may be left out, typer does not."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        pairs = zip(args, [*args[1:], "--"], strict=False)
        bare = [word == "--badge" and following.startswith("-") for word, following in pairs]
        return super().parse_args(
            ctx, [f"--badge={BADGE}" if alone else word for word, alone in zip(args, bare, strict=True)]
        )


def _writable(parameter: typer.CallbackParam, target: str | None) -> str | None:
    option = parameter.opts[0]
    if target == "-":
        raise ConfigError(f"{option} -: give a file; only --json can go to standard output")
    return check_report_file(target, option)


def _file(option: str, text: str) -> typer.models.OptionInfo:
    info: typer.models.OptionInfo = typer.Option(option, metavar="FILE", help=text, callback=_writable)
    return info


Name: TypeAlias = Annotated[str | None, typer.Argument(metavar="NAME", help="a backend's name, or a URL")]
Levels: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--level", help="core, zero_copy, hybrid, durable, shared, hostile; repeatable; default: all"),
]
Cases: TypeAlias = Annotated[
    list[str] | None, typer.Option("--case", help="one case, as its report names it; repeatable; default: all")
]
Seed: TypeAlias = Annotated[int | None, typer.Option(help="replay a run: the seed that its report names")]
JunitFile: TypeAlias = Annotated[str | None, _file("--junit", "write the report as JUnit XML there")]
HtmlFile: TypeAlias = Annotated[str | None, _file("--html", "write the report as one HTML page there")]
BadgeFile: TypeAlias = Annotated[
    str | None, _file("--badge", f"write an SVG of the levels earned there, or into {BADGE}")
]
Measure: TypeAlias = Annotated[
    bool, typer.Option("--measure", help="add an appendix of MB/s by page size, which decides nothing")
]
SglangClass: TypeAlias = Annotated[
    str | None,
    typer.Option("--sglang-class", metavar="MODULE:CLASS", help="judge a storage class of SGLang in place of NAME"),
]
ByItself: TypeAlias = Annotated[
    bool, typer.Option("--by-itself", help="of --sglang-class: without the levels, which take minutes")
]


def conformance(
    backend: Name = None,
    option: Assignments = None,
    level: Levels = None,
    case: Cases = None,
    seed: Seed = None,
    json_path: JsonFile = None,
    junit: JunitFile = None,
    html: HtmlFile = None,
    badge: BadgeFile = None,
    measure: Measure = False,
    sglang_class: SglangClass = None,
    by_itself: ByItself = False,
) -> None:
    """Judge a backend against the contract. Exit code 1 where a case does not hold."""
    with _suite_installed():
        from hicache_conformance.command import run_command
        from hicache_conformance.peer.command import run_judge
    options, levels = split_assignments(option or []), level or None
    if backend is not None and sglang_class is None:
        code = run_command(
            backend,
            options,
            json_path=json_path,
            junit_path=junit,
            html_path=html,
            badge_path=badge,
            measured=measure,
            levels=levels,
            cases=case or None,
            seed=seed,
        )
    elif sglang_class is not None and backend is None:
        code = run_judge(sglang_class, options, json_path=json_path, levels=levels, seed=seed, by_itself=by_itself)
    else:
        raise ConfigError("give the NAME of a backend, or --sglang-class MODULE:CLASS")
    raise typer.Exit(code)


@contextmanager
def _suite_installed() -> Iterator[None]:
    """Around the import of the suite. MissingDependencyError, with the install line, where it is not there."""
    try:
        yield
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith(("hicache_conformance", "pytest", "hypothesis")):
            raise
        raise MissingDependencyError(
            f"the conformance suite is a distribution of its own and {error.name!r} is not installed: {INSTALL}"
        ) from error
