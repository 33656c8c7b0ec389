"""How a command line of this project runs: an error of ours is one message and an exit code, not a traceback."""

from __future__ import annotations

import sys
from collections.abc import Callable

from rich.markup import escape

from hicache_core.cli.output import Exit, err
from hicache_core.errors import HiCacheError, OpenError
from hicache_core.switching import share_the_gil

INTERRUPTED = 130
"""What shells make of SIGINT."""


def run(app: Callable[[], object], *misuse: type[Exception]) -> None:
    """Run a typer application. misuse: further errors that mean bad input."""
    bad_input: tuple[type[Exception], ...] = (HiCacheError, *misuse)
    share_the_gil()
    try:
        app()
    except OpenError as error:
        _fail(error, Exit.STORE)
    except bad_input as error:
        _fail(error, Exit.USAGE)
    except BrokenPipeError:  # whoever read has seen enough
        sys.stderr.close()
        sys.exit(Exit.OK)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _fail(error: Exception, code: Exit) -> None:
    err.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
    sys.exit(code)
