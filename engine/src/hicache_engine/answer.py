"""The text of an answer as it grows: whole characters, cut at the first stop text."""

from __future__ import annotations

from .tokenizer import StreamDecoder, TextTokenizer


class AnswerText:
    """Turns tokens into text that may be sent; withholds what could be the beginning of a stop text."""

    def __init__(self, tokenizer: TextTokenizer, stop: tuple[str, ...] = ()) -> None:
        self._decoder = StreamDecoder(tokenizer)
        self._stop = stop
        self._held = ""
        self.stopped = False
        """Whether a stop text has been met; nothing comes after it."""

    def push(self, token: int) -> str:
        """Text that can be sent now."""
        return self._release(self._decoder.push(token))

    def finish(self) -> str:
        """What was withheld, once no token will follow."""
        if self.stopped:
            return ""
        text = self._release(self._decoder.finish())
        rest, self._held = self._held, ""
        return text + rest

    def _release(self, new: str) -> str:
        if self.stopped:
            return ""
        self._held += new
        found = [at for at in (self._held.find(s) for s in self._stop) if at >= 0]
        if found:
            self.stopped = True
            text, self._held = self._held[: min(found)], ""
            return text
        keep = max((_overlap(self._held, s) for s in self._stop), default=0)
        cut = len(self._held) - keep
        text, self._held = self._held[:cut], self._held[cut:]
        return text


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
