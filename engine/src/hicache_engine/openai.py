"""The OpenAI wire format: requests checked field by field, answers, chunks and errors.

Source: https://platform.openai.com/docs/api-reference (chat and completions). Fields of that interface that this
engine cannot honour are accepted where their value asks for nothing, and refused by name otherwise. Beyond it:
`top_k`, `cache_salt`, `priority`, `ignore_eos`, and in the usage the cached tokens by tier.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
import numpy as np

from hicache_core.errors import nearest
from hicache_core.jsontext import decode_json

from .errors import RequestError
from .job import Completion, FinishReason, Usage
from .sampling import SamplingParams
from .tokenizer import TextTokenizer, TokenIds

Kind = Literal["chat", "completion"]

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logprobs": (False, 0),
    "top_logprobs": (0,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "store": (False,),
    "service_tier": ("auto", "default"),
}
"""Fields that are not built, and the values of them that change nothing. null changes nothing anywhere."""
_IGNORED = ("user", "metadata", "safety_identifier", "prompt_cache_key")
_ROLES = ("system", "developer", "user", "assistant")
_ERROR_CODES = {400: "invalid_request_error", 404: "invalid_request_error", 405: "invalid_request_error"}


class _Common(msgspec.Struct, kw_only=True):
    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    ignore_eos: bool | None = None
    cache_salt: str | None = None
    priority: int | None = None


class _Chat(_Common, kw_only=True):
    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None


class _Completion(_Common, kw_only=True):
    prompt: str | list[int | str]


@dataclass(frozen=True, slots=True)
class Call:
    """A request, ready for the engine."""

    kind: Kind
    prompt: TokenIds
    params: SamplingParams
    stream: bool
    include_usage: bool
    options: dict[str, Any]
    """cache_salt and priority, as `Engine.submit` takes them."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))


class ModelNotFound(RequestError):
    """A request for a model that is not served here."""


def parse(kind: Kind, body: bytes, *, model: str, tokenizer: TextTokenizer, room: int) -> Call:
    """Check a request's body. room: tokens that prompt and answer may have together.

    Raises RequestError naming the field, ModelNotFound for another model than `model`.
    """
    fields = _fields(body, _Chat if kind == "chat" else _Completion)
    asked = _convert(fields, _Chat if kind == "chat" else _Completion)
    if asked.model not in (None, model):
        raise ModelNotFound(f"model {asked.model!r} is not served here; {model!r} is", "model")
    prompt = _prompt(asked, tokenizer)
    limit = asked.max_tokens
    if isinstance(asked, _Chat) and asked.max_completion_tokens is not None:
        limit = asked.max_completion_tokens
    if limit is None:
        limit = min(512 if kind == "chat" else 16, max(1, room - len(prompt)))
    stop = [asked.stop] if isinstance(asked.stop, str) else asked.stop or []
    params = SamplingParams(
        max_tokens=limit,
        temperature=1.0 if asked.temperature is None else asked.temperature,
        top_p=1.0 if asked.top_p is None else asked.top_p,
        top_k=asked.top_k or 0,
        seed=asked.seed,
        stop=tuple(stop),
        ignore_eos=bool(asked.ignore_eos),
    )
    streaming = bool(asked.stream)
    with_usage = bool((asked.stream_options or {}).get("include_usage", False))
    options = {"cache_salt": asked.cache_salt, "priority": asked.priority or 0}
    return Call(kind, prompt, params, streaming, with_usage, options)


def _fields(body: bytes, shape: type[_Common]) -> dict[str, Any]:
    """The known fields; the rest is dropped where it asks for nothing. Raises RequestError."""
    try:
        given = decode_json(body)
    except msgspec.DecodeError as error:
        raise RequestError(f"the body is not JSON: {error}") from error
    if not isinstance(given, dict):
        raise RequestError(f"the body must be a JSON object, not {type(given).__name__}")
    known = {f.name for f in msgspec.structs.fields(shape)}
    kept = {}
    for name, value in given.items():
        if name in known:
            kept[name] = value
        elif name in _NEUTRAL:
            if value is not None and value not in _NEUTRAL[name]:
                raise RequestError(f"{name} {value!r} is not built in this engine", name)
        elif name not in _IGNORED:
            near = nearest(name, {*known, *_NEUTRAL, *_IGNORED})
            hint = f"; did you mean {near!r}?" if near else ""
            raise RequestError(f"unrecognized request argument: {name!r}{hint}", name)
    return kept


def _convert(fields: dict[str, Any], shape: type[_Chat] | type[_Completion]) -> _Chat | _Completion:
    try:
        return msgspec.convert(fields, shape)
    except msgspec.ValidationError as error:
        where = str(error).rpartition("`$.")[2].rstrip("`") if "`$." in str(error) else None
        raise RequestError(f"bad request: {error}", where) from error


def _prompt(asked: _Chat | _Completion, tokenizer: TextTokenizer) -> TokenIds:
    if isinstance(asked, _Chat):
        if not asked.messages:
            raise RequestError("messages is empty", "messages")
        return tokenizer.encode(tokenizer.render([_message(m, i) for i, m in enumerate(asked.messages)]))
    prompt = asked.prompt
    if isinstance(prompt, list) and any(isinstance(part, str) for part in prompt):
        if len(prompt) > 1:
            raise RequestError("several prompts in one request are not built; send one request for each", "prompt")
        prompt = str(prompt[0])
    if isinstance(prompt, str):
        return tokenizer.encode(prompt)
    ids = [int(part) for part in prompt]
    bad = next((i for i in ids if not 0 <= i < tokenizer.vocab_size), None)
    if bad is not None:
        raise RequestError(f"token id {bad} is outside the vocabulary of {tokenizer.vocab_size}", "prompt")
    return np.asarray(ids, dtype=np.uint32)


def _message(message: dict[str, Any], index: int) -> dict[str, str]:
    where = f"messages[{index}]"
    role, content = message.get("role"), message.get("content")
    if role not in _ROLES:
        raise RequestError(f"{where}.role is {role!r}; known: {', '.join(_ROLES)}", f"{where}.role")
    if isinstance(content, list):
        texts = [p.get("text") if isinstance(p, dict) and p.get("type") == "text" else None for p in content]
        if not all(isinstance(text, str) for text in texts):
            raise RequestError(f"{where}.content has a part that is not text; only text is built", f"{where}.content")
        content = "".join(text for text in texts if text)
    if not isinstance(content, str):
        raise RequestError(f"{where}.content must be a text, not {type(content).__name__}", f"{where}.content")
    return {"role": "system" if role == "developer" else role, "content": content}


def usage_json(usage: Usage, *, report: bool) -> dict[str, Any]:
    """The usage; with `report` (enable_cache_report) also the cached tokens by tier and why others were not."""
    details: dict[str, Any] = {"cached_tokens": usage.cached}
    if report:
        details["cached_tokens_by_tier"] = {"device": usage.device, "host": usage.host, "storage": usage.storage}
        details["recomputed_tokens"] = usage.recomputed
        details["lost_tokens_by_reason"] = usage.lost
        details["hits_ended_by"] = usage.ended
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": details,
    }


def answer_json(call: Call, model: str, end: Completion, *, report: bool) -> dict[str, Any]:
    """The whole answer, not streamed."""
    if call.kind == "chat":
        choice: dict[str, Any] = {"index": 0, "message": {"role": "assistant", "content": end.text}}
    else:
        choice = {"index": 0, "text": end.text}
    choice |= {"logprobs": None, "finish_reason": end.reason}
    made = _head(call, model, "chat.completion" if call.kind == "chat" else "text_completion")
    return made | {"choices": [choice], "usage": usage_json(end.usage, report=report)}


def chunk_json(call: Call, model: str, text: str, reason: FinishReason | None, *, first: bool) -> dict[str, Any]:
    """One piece of a streamed answer."""
    if call.kind == "chat":
        delta = ({"role": "assistant"} if first else {}) | ({"content": text} if text or first else {})
        choice: dict[str, Any] = {"index": 0, "delta": delta}
    else:
        choice = {"index": 0, "text": text}
    choice |= {"logprobs": None, "finish_reason": reason}
    made = _head(call, model, "chat.completion.chunk" if call.kind == "chat" else "text_completion")
    return made | {"choices": [choice]}


def usage_chunk_json(call: Call, model: str, usage: Usage, *, report: bool) -> dict[str, Any]:
    """The last piece of a streamed answer whose caller asked for the usage."""
    made = _head(call, model, "chat.completion.chunk" if call.kind == "chat" else "text_completion")
    return made | {"choices": [], "usage": usage_json(usage, report=report)}


def error_json(message: str, status: int, *, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """An error as OpenAI's clients expect it."""
    kind = _ERROR_CODES.get(status, "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _head(call: Call, model: str, kind: str) -> dict[str, Any]:
    prefix = "chatcmpl" if call.kind == "chat" else "cmpl"
    return {"id": f"{prefix}-{call.id}", "object": kind, "created": call.created, "model": model}
