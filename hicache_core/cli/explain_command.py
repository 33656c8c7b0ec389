"""`hicache explain`: why a prompt would or would not be served from a store, page by page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt
import typer
from rich.text import Text

from hicache_core.cli.choices import AsJson, Assignments, Backend, chosen
from hicache_core.cli.output import out, print_json, table
from hicache_core.errors import ConfigError
from hicache_core.jsontext import decode_json
from hicache_core.keys import token_array
from hicache_core.namespace import Identity
from hicache_core.offline.explain import explain_prefix
from hicache_core.offline.raw import RawStore

_STYLE = {"stored": "green", "missing": "yellow", "partial": "dim"}


def register(app: typer.Typer) -> None:
    """Add the command to `hicache`."""
    app.command("explain")(explain)


def explain(
    backend: Backend,
    identity: Annotated[Path, typer.Option(help="JSON file with the identity (hicache-engine identity writes it)")],
    tokens: Annotated[str, typer.Option(help="JSON file with the prompt's token ids; - is standard input")],
    option: Assignments = None,
    extra_key: Annotated[str | None, typer.Option(help="the request's extra key (LoRA)")] = None,
    cache_salt: Annotated[str | None, typer.Option(help="the request's cache salt")] = None,
    as_json: AsJson = False,
) -> None:
    """Page by page: stored and intact, missing, damaged, or stored under another identity."""
    who = load_identity(identity)
    ids = load_tokens(tokens)
    _check_text("--extra-key", extra_key)
    _check_text("--cache-salt", cache_salt)
    with RawStore(chosen(backend, option)) as store:
        rows = explain_prefix(store, who, ids, extra_key=extra_key, cache_salt=cache_salt)
    usable = sum(row.served for row in rows)
    if as_json:
        print_json({"namespace": who.namespace(), "pages": len(rows), "usable": usable, "rows": rows})
        return
    shown = [
        (
            row.page,
            Text(row.state, _STYLE.get(row.state, "red")),
            "yes" if row.served else "no",
            row.reason,
        )
        for row in rows
    ]
    out.print(
        table(
            f"{usable} of {len(rows)} pages usable, namespace {who.namespace()}",
            ("page", "state", "served", "why"),
            shown,
            right=(0,),
        )
    )


def _check_text(option: str, value: str | None) -> None:
    """Raises ConfigError for bytes of a command line that are no UTF-8: no request can have such a key."""
    try:
        (value or "").encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{option} is not UTF-8: {error}") from error


def load_identity(path: Path) -> Identity:
    """An identity from its JSON form.

    Raises:
        ConfigError: the file is absent, no JSON, or names a field that an identity does not have.
    """
    try:
        fields = decode_json(path.read_bytes(), dict)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"identity {path}: {error}") from error
    unknown = set(fields) - set(Identity.__dataclass_fields__)
    if unknown:
        raise ConfigError(f"identity {path}: unknown field {sorted(unknown)[0]!r}")
    try:
        return msgspec.convert(fields, Identity)
    except msgspec.ValidationError as error:
        raise ConfigError(f"identity {path}: {error}") from error


def load_tokens(source: str) -> npt.NDArray[np.unsignedinteger]:
    """Token ids from a JSON list, or from a JSON object with a field `tokens`.

    Raises:
        ConfigError: the file is absent or holds something else.
    """
    try:
        data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
        found = decode_json(data)
        ids = msgspec.convert(found["tokens"] if isinstance(found, dict) else found, list[int])
        return token_array(ids)
    except (OSError, KeyError, ValueError, msgspec.MsgspecError) as error:
        raise ConfigError(f"tokens {source}: expected a JSON list of token ids ({error})") from error
