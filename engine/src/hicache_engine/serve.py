"""Running the HTTP server until it is told to stop."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import uvicorn
from starlette.applications import Starlette

from .engine import Engine
from .server import make_app
from .service import EngineService


def serve_forever(engine: Engine, *, host: str, port: int, report: bool) -> None:
    """Serve until SIGINT or SIGTERM; then open answers end, and what is being written to L3 is finished."""
    service = EngineService(engine)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        service.start()
        try:
            yield
        finally:
            service.stop()

    app = make_app(service, report=report, lifespan=lifespan)
    uvicorn.run(app, host=host, port=port, log_level="info", timeout_graceful_shutdown=5)
