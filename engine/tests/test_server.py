from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import asynccontextmanager

import httpx
import pytest
from hicache_engine.errors import RequestAborted
from hicache_engine.job import Completion
from hicache_engine.sampling import SamplingParams
from hicache_engine.server import make_app
from hicache_engine.service import EngineService

CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "temperature": 0, "ignore_eos": True}


@pytest.fixture
def service(make_engine) -> Iterator[EngineService]:
    service = EngineService(make_engine(pages=64))
    service.start()
    yield service
    service.stop()


@asynccontextmanager
async def connected(service, **options):
    transport = httpx.ASGITransport(app=make_app(service, **options), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
        yield client


def ask(service, path, body=None, **options):
    async def run():
        async with connected(service, **options) as client:
            if body is None:
                return await client.get(path)
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            return await client.post(path, content=content)

    return asyncio.run(run())


def events(response):
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_a_chat_is_answered_with_its_usage_by_tier(service):
    first = ask(service, "/v1/chat/completions", CHAT).json()
    second = ask(service, "/v1/chat/completions", CHAT).json()
    assert first["object"] == "chat.completion"
    choice = first["choices"][0]
    assert choice["message"]["role"] == "assistant"
    assert choice["finish_reason"] == "length"
    assert choice["message"] == second["choices"][0]["message"]
    usage = second["usage"]
    details = usage["prompt_tokens_details"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + 8
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert details["cached_tokens"] == details["cached_tokens_by_tier"]["device"] > 0
    assert details["cached_tokens"] + details["recomputed_tokens"] == usage["prompt_tokens"]


def test_the_report_by_tier_can_be_turned_off(service):
    usage = ask(service, "/v1/chat/completions", CHAT, report=False).json()["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}


def test_a_streamed_chat_gives_the_same_text_in_pieces(service):
    whole = ask(service, "/v1/chat/completions", CHAT).json()
    response = ask(
        service, "/v1/chat/completions", CHAT | {"stream": True, "stream_options": {"include_usage": True}}
    )
    assert response.headers["content-type"].startswith("text/event-stream")
    pieces = events(response)
    assert pieces[0]["choices"][0]["delta"]["role"] == "assistant"
    text = "".join(p["choices"][0]["delta"].get("content", "") for p in pieces if p["choices"])
    assert text == whole["choices"][0]["message"]["content"]
    assert [p["choices"][0]["finish_reason"] for p in pieces if p["choices"]][-1] == "length"
    assert pieces[-1]["usage"]["completion_tokens"] == 8
    assert len({p["id"] for p in pieces}) == 1


@pytest.mark.parametrize("prompt", ["ab", ["ab"], [97, 98]])
def test_completions_take_text_and_tokens(service, prompt):
    body = {"prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    answer = ask(service, "/v1/completions", body).json()
    assert answer["object"] == "text_completion"
    assert answer["usage"]["prompt_tokens"] == 2
    streamed = events(ask(service, "/v1/completions", body | {"stream": True}))
    assert "".join(p["choices"][0]["text"] for p in streamed) == answer["choices"][0]["text"]


def test_many_clients_at_once_get_their_own_answers(service):
    async def run():
        async with connected(service) as client:
            bodies = [CHAT | {"messages": [{"role": "user", "content": f"question {i}"}]} for i in range(12)]
            alone = [(await client.post("/v1/chat/completions", json=body)).json() for body in bodies]
            together = await asyncio.gather(*(client.post("/v1/chat/completions", json=body) for body in bodies))
            return alone, [response.json() for response in together]

    alone, together = asyncio.run(run())
    assert [a["choices"] for a in alone] == [b["choices"] for b in together]


def test_models_and_health(service):
    name = service.engine.model.name
    assert ask(service, "/v1/models").json()["data"][0]["id"] == name
    assert ask(service, f"/v1/models/{name}").json()["max_model_len"] == 64 * 8
    assert ask(service, "/health").json()["status"] == "ok"


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        (b"{", None, "not JSON"),
        (b"[]", None, "JSON object"),
        (b'{"a":' * 100_000, None, "nested too deeply"),
        (b"\xff\x00", None, "not JSON"),
        ({}, None, "messages"),
        (CHAT | {"messages": []}, "messages", "empty"),
        (CHAT | {"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role", "wizard"),
        (CHAT | {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content", "text"),
        (CHAT | {"temperature": "hot"}, "temperature", "float"),
        (CHAT | {"temperature": -1}, "temperature", "between"),
        (CHAT | {"max_tokens": 0}, "max_tokens", "at least 1"),
        (CHAT | {"max_tokens": 100_000}, "max_tokens", "device pool of 64 pages"),
        (CHAT | {"n": 3}, "n", "not built"),
        (CHAT | {"tools": [{"type": "function"}]}, "tools", "not built"),
        (CHAT | {"temprature": 0.5}, "temprature", "did you mean 'temperature'"),
    ],
)
def test_bad_requests_are_named(service, body, param, says):
    response = ask(service, "/v1/chat/completions", body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert says in error["message"]
    assert service.alive


def test_neutral_values_of_what_is_not_built_are_accepted(service):
    body = CHAT | {
        "n": 1,
        "user": "me",
        "frequency_penalty": 0,
        "logit_bias": None,
        "response_format": {"type": "text"},
    }
    assert ask(service, "/v1/chat/completions", body).status_code == 200


def test_unknown_models_and_paths_are_told(service):
    response = ask(service, "/v1/chat/completions", CHAT | {"model": "gpt-9"})
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"
    assert ask(service, "/v1/nothing").json()["error"]["message"].startswith("GET /v1/nothing")
    assert ask(service, "/v1/chat/completions").status_code == 405


async def call_and_leave(app, body, after):
    """Speak ASGI by hand; the client leaves once `after` body messages have come."""
    gone, sent = asyncio.Event(), []
    asked = False

    async def receive():
        nonlocal asked
        if not asked:
            asked = True
            return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)
        if sum(m["type"] == "http.response.body" for m in sent) >= after:
            gone.set()

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "path": "/v1/chat/completions",
        "raw_path": b"/v1/chat/completions",
        "query_string": b"",
        "headers": [],
        "scheme": "http",
        "server": ("engine", 80),
        "client": ("client", 1),
    }
    if after == 0:
        gone.set()
    await asyncio.wait_for(app(scope, receive, send), 30)
    return sent


@pytest.mark.parametrize(("stream", "after"), [(True, 2), (True, 0), (False, 0)])
def test_a_client_that_leaves_aborts_its_request(service, stream, after):
    ends = []
    scheduler = service.engine.scheduler
    real = scheduler.add

    def add(job):
        listener = job.listener

        def listen(event):
            if isinstance(event, Completion):
                ends.append(event)
            listener(event)

        job.listener = listen
        real(job)

    scheduler.add = add
    body = CHAT | {"max_tokens": 400, "stream": stream}

    async def run():
        await call_and_leave(make_app(service), body, after)
        return await service.run(lambda engine: engine.scheduler.busy)

    assert asyncio.run(run()) is False
    assert all(end.reason == "abort" for end in ends)
    assert ask(service, "/v1/chat/completions", CHAT).status_code == 200


def test_an_engine_that_breaks_tells_every_client_and_health(make_engine):
    service = EngineService(make_engine())
    service.start()

    def broken():
        raise ZeroDivisionError("boom")

    async def run():
        stream = service.stream(service.engine.encode("x"), SamplingParams(max_tokens=100, ignore_eos=True))
        await anext(stream)
        service.engine.scheduler.step = broken
        with pytest.raises(RequestAborted, match="stopped") as caught:
            async for _ in stream:
                pass
        return caught.value

    error = asyncio.run(run())
    assert isinstance(error.__cause__, ZeroDivisionError)
    health = ask(service, "/health")
    assert health.status_code == 503
    assert "boom" in health.json()["error"]
    assert ask(service, "/v1/chat/completions", CHAT).status_code == 503
    del service.engine.scheduler.step
    service.engine.scheduler.abort_all()


def test_stopping_ends_open_streams(make_engine):
    service = EngineService(make_engine())
    service.start()

    async def run():
        stream = service.stream(service.engine.encode("x"), SamplingParams(max_tokens=500, ignore_eos=True))
        await anext(stream)
        await asyncio.to_thread(service.stop)
        return [event async for event in stream][-1]

    end = asyncio.run(run())
    assert isinstance(end, Completion)
    assert end.reason == "abort"
