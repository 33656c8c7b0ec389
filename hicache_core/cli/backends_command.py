"""`hicache backends list` and `show`: what can be chosen, and how it is configured."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer
from rich.markup import escape

from hicache_core.cli.choices import AsJson, Assignments, chosen
from hicache_core.cli.output import Exit, out, print_json, table
from hicache_core.plugin.discovery import FoundBackend, discover, find_backend
from hicache_core.plugin.options import describe_options
from hicache_core.types import Capabilities

group = typer.Typer(help="Storage backends: what is installed, and each one's options.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands to `hicache`."""
    app.add_typer(group, name="backends")


@group.command("list")
def list_backends(as_json: AsJson = False) -> None:
    """Every backend that is installed; those that are broken are named with the cause."""
    found = discover()
    if as_json:
        print_json(
            {
                "backends": [_summary(entry) for entry in found.specs.values()],
                "broken": [{"name": b.entry, "distribution": b.distribution, "error": str(b)} for b in found.broken],
                "duplicates": found.duplicates,
                "disabled": found.disabled,
            }
        )
    else:
        rows = [
            (name, entry.spec.description, f"{entry.distribution} {entry.version}", _marks(entry))
            for name, entry in sorted(found.specs.items())
        ]
        out.print(table("Backends", ("name", "what it is", "from", "notes"), rows))
        for plugin in found.broken:
            out.print(f"[red]broken[/] {escape(str(plugin))}")
        for name, owners in found.duplicates.items():
            out.print(f"[red]claimed twice[/] {name}: {escape(' and '.join(owners))}")
    if found.broken or found.duplicates:
        raise typer.Exit(Exit.FAILED)


@group.command("show")
def show(
    name: Annotated[str, typer.Argument(help="a backend's name")],
    option: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """One backend: options with defaults and help, what it needs, and its capabilities (under the options given)."""
    spec = find_backend(name)
    options = describe_options(spec.options)
    fixed = spec.capabilities if isinstance(spec.capabilities, Capabilities) else None
    if option:
        fixed = chosen(name, option).capabilities
    if as_json:
        print_json(
            {
                "name": spec.name,
                "description": spec.description,
                "plugin_api": spec.plugin_api,
                "fake": spec.fake,
                "requires": [msgspec.structs.asdict(r) for r in spec.requires],
                "options": [
                    {
                        "name": o.name,
                        "type": o.type,
                        "default": None if o.secret else o.default,
                        "required": o.required,
                        "help": o.help,
                    }
                    for o in options
                ],
                "capabilities": None if fixed is None else msgspec.structs.asdict(fixed),
            }
        )
        return
    out.print(f"[bold]{spec.name}[/]  {escape(spec.description)}  (PLUGIN_API {spec.plugin_api})")
    for need in spec.requires:
        out.print(f"needs {need.module}: [cyan]{escape(need.install)}[/]")
    rows = [(o.name, o.type, "required" if o.required else _shown(o.default), o.help) for o in options]
    out.print(table("Options", ("name", "type", "default", "meaning"), rows))
    if fixed is None:
        required = " ".join(f"-o {o.name}=…" for o in options if o.required)
        out.print(f"Capabilities depend on the options; give them to see which: {required or '-o NAME=VALUE'}")
    else:
        out.print(table("Capabilities", ("name", "value"), list(msgspec.structs.asdict(fixed).items())))


def _summary(entry: FoundBackend) -> dict[str, Any]:
    return {
        "name": entry.spec.name,
        "description": entry.spec.description,
        "distribution": entry.distribution,
        "version": entry.version,
        "plugin_api": entry.spec.plugin_api,
        "fake": entry.spec.fake,
    }


def _marks(entry: FoundBackend) -> str:
    return "runs on a fake of its store" if entry.spec.fake else ""


def _shown(value: Any) -> str:
    return "none" if value is None else str(value)
