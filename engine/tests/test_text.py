from __future__ import annotations

import pytest
import torch
from hicache_engine.answer import AnswerText
from hicache_engine.errors import ModelFileError, RequestError
from hicache_engine.sampling import Sampler, SamplingParams
from hicache_engine.tokenizer import BpeTokenizer, ByteTokenizer, ChatTemplate, StreamDecoder
from hypothesis import given
from hypothesis import strategies as st


def test_bytes_come_back_as_text():
    tokenizer = ByteTokenizer()
    text = "naïve 日本 🙂"
    assert tokenizer.decode([*tokenizer.encode(text), 256]) == text


@given(st.text(max_size=80))
def test_a_stream_gives_the_same_text_in_whole_characters(text):
    tokenizer = ByteTokenizer()
    decoder = StreamDecoder(tokenizer)
    pieces = [decoder.push(int(i)) for i in tokenizer.encode(text)]
    assert "".join(pieces) + decoder.finish() == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


def test_broken_bytes_are_shown_and_do_not_hold_up_what_follows():
    decoder = StreamDecoder(ByteTokenizer())
    assert "".join(decoder.push(i) for i in [0xFF] * 3) == ""
    assert decoder.push(0xFF) == "\ufffd" * 4
    assert decoder.push(ord("a")) == "a"


@given(st.text("abc", max_size=30), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3))
def test_an_answer_ends_before_its_first_stop_text(text, stops):
    answer = AnswerText(ByteTokenizer(), tuple(stops))
    sent = ""
    for token in text.encode():
        sent += answer.push(token)
        assert not any(stop in sent for stop in stops)
        if answer.stopped:
            break
    stopped, sent = answer.stopped, sent + answer.finish()
    first_end = min((text.find(s) + len(s) for s in stops if s in text), default=None)
    assert stopped == (first_end is not None)
    if first_end is None:
        assert sent == text
    else:
        seen = text[:first_end]
        assert sent == seen[: min(seen.find(s) for s in stops if s in seen)]


def test_a_chat_template_cannot_reach_outside_and_says_so():
    template = ChatTemplate("{{ ''.__class__.__mro__ }}")
    with pytest.raises(RequestError, match="chat template"):
        template.render([])


def test_an_unknown_tokenizer_is_refused():
    with pytest.raises(ModelFileError, match="'llama'"):
        BpeTokenizer({"tokenizer.ggml.model": "llama"})


@pytest.mark.parametrize(
    "bad",
    [{"max_tokens": 0}, {"temperature": -1.0}, {"top_p": 0.0}, {"top_p": 1.5}, {"top_k": -1}, {"stop": ("",)}],
)
def test_parameters_out_of_range_are_named(bad):
    with pytest.raises(RequestError, match=next(iter(bad))) as caught:
        SamplingParams(**bad)
    assert caught.value.param == next(iter(bad))


def test_greedy_takes_the_best_and_a_seed_repeats():
    logits = torch.tensor([0.0, 3.0, 1.0, 2.9])
    assert Sampler(SamplingParams())(logits) == 1
    params = SamplingParams(temperature=1.0, seed=11)
    first, second = Sampler(params), Sampler(params)
    drawn = [first(logits) for _ in range(50)]
    assert drawn == [second(logits) for _ in range(50)]
    assert len(set(drawn)) > 1


@pytest.mark.parametrize("scale", [1.0, 1e4, 1e38])
@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-40, 1e-6, 1e-5, 100.0])
@pytest.mark.parametrize("more", [{}, {"top_p": 5e-324}, {"top_k": 2**70}])
def test_every_temperature_draws_a_token(temperature, scale, more):
    logits = torch.tensor([-1.0, 3.0, 1.0, 2.9]) * scale
    token = Sampler(SamplingParams(temperature=temperature, seed=1, **more))(logits)
    assert token == 1 or temperature > 1.0


def test_top_k_and_top_p_keep_only_the_likeliest():
    logits = torch.tensor([0.0, 3.0, 1.0, 2.9])
    by_k = Sampler(SamplingParams(temperature=5.0, top_k=2, seed=1))
    assert {by_k(logits) for _ in range(100)} == {1, 3}
    by_p = Sampler(SamplingParams(temperature=1.0, top_p=0.4, seed=1))
    assert {by_p(logits) for _ in range(100)} == {1}
