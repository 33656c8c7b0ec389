"""A conversation in the terminal."""

from __future__ import annotations

import sys

import msgspec
from rich.markup import escape

from hicache_core.cli.output import err, print_json

from .engine import Engine
from .errors import RequestError
from .job import Completion, Delta
from .sampling import SamplingParams
from .tokenizer import Message


class Chat:
    """Asks an engine, keeps the conversation, shows each answer as it grows and what its prompt cost."""

    def __init__(
        self, engine: Engine, params: SamplingParams, *, system: str | None = None, as_json: bool = False
    ) -> None:
        self._engine, self._params, self._as_json = engine, params, as_json
        self._messages: list[Message] = [{"role": "system", "content": system}] if system else []

    def loop(self) -> None:
        """Ask what is typed, line by line, until the input ends. A question that is too long is said so."""
        shown = sys.stdin.isatty() and not self._as_json
        if shown:
            err.print("[dim]Ctrl-D ends the conversation.[/]")
        while True:
            try:
                question = input("» " if shown else "").strip()
            except EOFError:
                return
            if not question:
                continue
            try:
                self.ask(question)
            except RequestError as error:
                err.print(f"[bold red]error:[/] {escape(str(error))}")

    def ask(self, question: str) -> Completion:
        """One question and its answer. Raises RequestError where the conversation no longer fits."""
        messages = [*self._messages, {"role": "user", "content": question}]
        engine, ends = self._engine, list[Completion]()

        def listen(event: Delta | Completion) -> None:
            if isinstance(event, Completion):
                ends.append(event)
            if not self._as_json:
                sys.stdout.write(event.tail if isinstance(event, Completion) else event.text)
                sys.stdout.flush()

        engine.submit(engine.tokenizer.render(messages), self._params, listener=listen)
        engine.run_until_idle()
        (end,) = ends
        self._messages = [*messages, {"role": "assistant", "content": end.text}]
        self._show(end)
        return end

    def _show(self, end: Completion) -> None:
        usage = end.usage
        if self._as_json:
            print_json(
                {
                    "text": end.text,
                    "finish_reason": end.reason,
                    "ttft_ms": None if end.ttft is None else round(end.ttft * 1e3, 2),
                    "usage": msgspec.to_builtins(usage),
                }
            )
            return
        sys.stdout.write("\n")
        parts = [f"{tokens} {tier}" for tier, tokens in usage.by_tier.items() if tokens]
        why = f"; hits ended by {usage.ended}" if usage.ended else ""
        ttft = "" if end.ttft is None else f", first token after {end.ttft * 1e3:.0f} ms"
        came = ", ".join(parts) + why
        err.print(f"[dim]{usage.prompt_tokens} prompt tokens ({came}){ttft}, {usage.completion_tokens} new[/]")
