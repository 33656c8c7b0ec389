"""Text to token ids and back: a byte-level BPE from GGUF metadata, and a byte tokenizer for models without one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from .errors import ModelFileError, RequestError

TokenIds = npt.NDArray[np.uint32]
Message = Mapping[str, str]

_CONTROL = 3
"""GGUF token type of a special token."""
_REPLACEMENT = "\ufffd"
_PLAIN_TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


class TextTokenizer(Protocol):
    """What the engine needs of a tokenizer."""

    vocab_size: int
    stop_ids: frozenset[int]
    """Tokens after which generation ends."""

    def encode(self, text: str) -> TokenIds:
        """Token ids of the text, uint32[n]; special tokens written in the text become their ids."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the ids, without special tokens; bytes that are not UTF-8 become U+FFFD."""

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt of a conversation, ending where the assistant speaks. Raises RequestError."""


class ChatTemplate:
    """A jinja2 chat template, run in a sandbox since it comes with the model file."""

    def __init__(self, source: str, **tokens: str) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        self._template = environment.from_string(source)
        self._tokens = tokens

    def render(self, messages: Sequence[Message]) -> str:
        """The conversation as one prompt. Raises RequestError where the template refuses it."""
        try:
            return self._template.render(messages=list(messages), add_generation_prompt=True, **self._tokens)
        except (TemplateError, TypeError) as error:
            raise RequestError(f"the chat template refuses these messages: {error}", "messages") from error


class BpeTokenizer:
    """The byte-level BPE (`tokenizer.ggml.model` = gpt2) of a GGUF file. Raises ModelFileError for other kinds."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        kind, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
        if kind != "gpt2" or pre != "smollm":
            raise ModelFileError(
                f"tokenizer {kind!r} with pre-tokenizer {pre!r}; only SmolLM's byte-level BPE (gpt2, smollm) is built"
            )
        words: list[str] = metadata["tokenizer.ggml.tokens"]
        merges = [tuple(m.split(" ", 1)) for m in metadata["tokenizer.ggml.merges"]]
        tokenizer = Tokenizer(models.BPE(vocab={w: i for i, w in enumerate(words)}, merges=merges))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        tokenizer.decoder = decoders.ByteLevel()
        control = [w for w, t in zip(words, metadata["tokenizer.ggml.token_type"], strict=True) if t == _CONTROL]
        tokenizer.add_special_tokens([AddedToken(w, special=True, normalized=False) for w in control])
        self._tokenizer = tokenizer
        self.vocab_size = len(words)
        end = int(metadata["tokenizer.ggml.eos_token_id"])
        self.stop_ids = frozenset({end, words.index("<|endoftext|>")} if "<|endoftext|>" in control else {end})
        begin = words[int(metadata.get("tokenizer.ggml.bos_token_id", end))]
        source = metadata.get("tokenizer.chat_template", _PLAIN_TEMPLATE)
        self._chat = ChatTemplate(source, bos_token=begin, eos_token=words[end])

    def encode(self, text: str) -> TokenIds:
        """See TextTokenizer."""
        return np.asarray(self._tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.uint32)

    def decode(self, ids: Sequence[int]) -> str:
        """See TextTokenizer."""
        text: str = self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=True)
        return text

    def render(self, messages: Sequence[Message]) -> str:
        """See TextTokenizer."""
        return self._chat.render(messages)


class ByteTokenizer:
    """One id per byte of UTF-8, id 256 ends the text: for random-init models, which need no vocabulary."""

    vocab_size = 257
    stop_ids = frozenset({256})

    def __init__(self) -> None:
        self._chat = ChatTemplate(_PLAIN_TEMPLATE)

    def encode(self, text: str) -> TokenIds:
        """See TextTokenizer."""
        return np.frombuffer(text.encode("utf-8"), dtype=np.uint8).astype(np.uint32)

    def decode(self, ids: Sequence[int]) -> str:
        """See TextTokenizer."""
        return bytes(i for i in ids if i < 256).decode("utf-8", errors="replace")

    def render(self, messages: Sequence[Message]) -> str:
        """See TextTokenizer."""
        return self._chat.render(messages)


class StreamDecoder:
    """Text of a growing list of ids, given out only where no character is cut in two."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._start = 0
        self._sent = ""
        self._held = 0

    def push(self, token: int) -> str:
        """The text that this id completes; empty while a character is still incomplete."""
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids[self._start :])
        self._held += 1
        if text.endswith(_REPLACEMENT) and self._held < 4:  # no character of UTF-8 is longer than four bytes
            return ""
        return self._give(text)

    def finish(self) -> str:
        """What is left, replacement characters included."""
        return self._give(self._tokenizer.decode(self._ids[self._start :]))

    def _give(self, text: str) -> str:
        new = text[len(self._sent) :]
        self._sent, self._held = text, 0
        if len(self._ids) - self._start >= 32 and not text.endswith(_REPLACEMENT):
            self._start, self._sent = len(self._ids), ""
        return new
