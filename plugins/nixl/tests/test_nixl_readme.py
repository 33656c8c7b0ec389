"""The README's configs are configs, and what doctor asks of one."""

import re
from pathlib import Path

import msgspec
from hicache_nixl.options import NixlOptions
from hicache_nixl.probe import probe

from hicache_core.plugin.select import choose_backend

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_configs_are_taken() -> None:
    found = [
        choose_backend(msgspec.json.decode(text)).options for text in re.findall(r"```json\n(.*?)```", README, re.S)
    ]
    assert [options.plugin for options in found] == ["POSIX", "OBJ"]


def test_doctor_has_nothing_to_say_of_a_good_root_and_much_of_none(tmp_path: Path) -> None:
    assert probe(NixlOptions(root=str(tmp_path / "kv"))) == []
    assert "needs option root" in probe(NixlOptions())[0]
    assert "needs option bucket" in probe(NixlOptions(plugin="OBJ"))[0]
