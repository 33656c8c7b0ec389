"""What a conversation in the terminal says besides the answer."""

from hicache_engine.chat import Chat
from hicache_engine.flags import engine_options
from hicache_engine.sampling import SamplingParams


def test_what_was_computed_is_told_with_its_reason(capsys):
    with engine_options(model="random", device_tokens=1024).build() as engine:
        end = Chat(engine, SamplingParams(max_tokens=2)).ask("x" * 100)
    said = " ".join(capsys.readouterr().err.split())
    assert end.usage.ended == "no_storage"
    assert "recomputed; hits ended by no_storage)" in said
