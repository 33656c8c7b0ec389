"""The OpenAI-compatible HTTP server: chat, completions, models, health."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Lifespan, Receive, Scope, Send

from . import openai
from .errors import RequestAborted, RequestError
from .job import Completion
from .openai import Call, Kind, ModelNotFound
from .service import EngineService

MAX_BODY_BYTES = 4 << 20


def make_app(
    service: EngineService, *, report: bool = True, lifespan: Lifespan[Starlette] | None = None
) -> Starlette:
    """The ASGI application. report: say in each usage which tier the cached tokens came from.

    The service must be running when requests come; `lifespan` may start and stop it.
    """
    routes = _Routes(service, report)
    return Starlette(
        routes=[
            Route("/v1/chat/completions", routes.chat, methods=["POST"]),
            Route("/v1/completions", routes.completions, methods=["POST"]),
            Route("/v1/models", routes.models, methods=["GET"]),
            Route("/v1/models/{name:path}", routes.model, methods=["GET"]),
            Route("/health", routes.health, methods=["GET"]),
        ],
        lifespan=lifespan,
        exception_handlers={HTTPException: _http_error, RequestError: _request_error, RequestAborted: _aborted},
    )


class _Routes:
    def __init__(self, service: EngineService, report: bool) -> None:
        self._service, self._report = service, report
        self._model = service.engine.model.name

    async def health(self, request: Request) -> Response:
        """200 while requests are served, 503 once the engine's thread has ended."""
        alive = self._service.alive
        scheduler = self._service.engine.scheduler
        body = {"status": "ok" if alive else "failed", "running": scheduler.running, "waiting": scheduler.waiting}
        if self._service.failure is not None:
            body["error"] = str(self._service.failure)
        return JSONResponse(body, 200 if alive else 503)

    async def models(self, request: Request) -> Response:
        """The one model there is."""
        return JSONResponse({"object": "list", "data": [self._described()]})

    async def model(self, request: Request) -> Response:
        """That model, by name."""
        name = request.path_params["name"]
        if name != self._model:
            raise ModelNotFound(f"model {name!r} is not served here; {self._model!r} is", "model")
        return JSONResponse(self._described())

    def _described(self) -> dict[str, Any]:
        room = self._service.engine.scheduler.max_tokens
        return {"id": self._model, "object": "model", "created": 0, "owned_by": "hicache", "max_model_len": room}

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions"""
        return await self._answer("chat", request)

    async def completions(self, request: Request) -> Response:
        """POST /v1/completions"""
        return await self._answer("completion", request)

    async def _answer(self, kind: Kind, request: Request) -> Response:
        engine = self._service.engine
        body = await _body(request)
        room = engine.scheduler.max_tokens
        call = openai.parse(kind, body, model=self._model, tokenizer=engine.tokenizer, room=room)
        engine.scheduler.check(len(call.prompt), call.params.max_tokens)
        if call.stream:
            return _EventStream(self._events(call))
        end = await self._collect(call, request)
        if end.reason == "error":
            return JSONResponse(openai.error_json(end.error, 500), 500)
        return JSONResponse(openai.answer_json(call, self._model, end, report=self._report))

    async def _collect(self, call: Call, request: Request) -> Completion:
        """The whole answer. A client that goes away meanwhile aborts the request."""
        work = asyncio.ensure_future(self._last(call))
        gone = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise RequestAborted("the client went away")
            return work.result()
        finally:
            for task in (work, gone):
                task.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)

    async def _last(self, call: Call) -> Completion:
        async with contextlib.aclosing(self._service.stream(call.prompt, call.params, **call.options)) as events:
            async for event in events:
                if isinstance(event, Completion):
                    return event
        raise RequestAborted("the engine ended the request without an answer")

    async def _events(self, call: Call) -> AsyncGenerator[bytes, None]:
        """Server-sent events. Closing the generator early, as the server does for a client that left, aborts."""
        first = True
        try:
            async with contextlib.aclosing(self._service.stream(call.prompt, call.params, **call.options)) as events:
                async for event in events:
                    done = isinstance(event, Completion)
                    if isinstance(event, Completion) and event.reason == "error":
                        yield _event(openai.error_json(event.error, 500))
                        return
                    text = event.tail if isinstance(event, Completion) else event.text
                    if text or first or done:
                        reason = event.reason if isinstance(event, Completion) else None
                        if done and text:
                            yield _event(openai.chunk_json(call, self._model, text, None, first=first))
                            text, first = "", False
                        yield _event(openai.chunk_json(call, self._model, text, reason, first=first))
                        first = False
                    if isinstance(event, Completion) and call.include_usage:
                        yield _event(openai.usage_chunk_json(call, self._model, event.usage, report=self._report))
        except RequestAborted as error:
            yield _event(openai.error_json(str(error), 500))
            return
        yield b"data: [DONE]\n\n"


class _EventStream(StreamingResponse):
    """Server-sent events whose generator is closed at once when the client has gone, wherever it was."""

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._events.aclose()


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


async def _body(request: Request) -> bytes:
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise RequestError(f"the body is larger than {MAX_BODY_BYTES} bytes")
    return body


async def _disconnected(request: Request) -> None:
    """Returns when the client has gone. The body has been read, so the next message can be nothing else."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    return JSONResponse(openai.error_json(message, error.status_code), error.status_code, error.headers)


async def _request_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    missing = isinstance(error, ModelNotFound)
    code = "model_not_found" if missing else None
    status = 404 if missing else 400
    return JSONResponse(openai.error_json(str(error), status, param=error.param, code=code), status)


async def _aborted(request: Request, error: Exception) -> Response:
    return JSONResponse(openai.error_json(str(error), 503), 503)
