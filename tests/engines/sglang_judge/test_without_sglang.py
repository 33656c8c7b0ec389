"""What holds without SGLang: options, the command's messages, and that nothing imports it early."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest
from hicache_conformance.peer.casebook import peer_cases
from hicache_conformance.peer.kit import PLACE, PeerKit
from hicache_conformance.peer.known import kit_for, known_kits
from hicache_conformance.peer.signals import handlers_left_out_in_threads
from typer.testing import CliRunner

from hicache_core.adapters.sglang_backend.options import SglangOptions, capabilities_under
from hicache_core.cli.app import app
from hicache_core.errors import OptionError
from hicache_core.plugin.options import parse_options


def test_importing_the_judge_imports_no_engine() -> None:
    """Neither SGLang nor torch, in the modules that list cases, kits and the backend."""
    program = (
        "import sys, hicache_conformance.peer.judge, hicache_conformance.peer.known,"
        " hicache_conformance.peer.casebook as c, hicache_core.adapters.sglang_backend.plugin\n"
        "c.peer_cases()\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('torch', 'sglang')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_case_says_what_it_does_and_what_is_the_matter_where_it_fails() -> None:
    """Ids are unique by construction; words are not."""
    cases = peer_cases()
    assert len(cases) >= 20
    assert all(case.summary and case.defect for case in cases)


def test_the_directory_of_a_throwaway_store_is_put_wherever_it_is_named(tmp_path: object) -> None:
    """Also inside nested values, and nowhere else."""
    kit = PeerKit("x", "m:C", {"extra_config": {"a": [f"{PLACE}/x"], "b": 3}, "environment": {"V": PLACE}})
    made = kit.options_in(tmp_path)  # type: ignore[arg-type]
    assert made["extra_config"] == {"a": [f"{tmp_path}/x"], "b": 3}
    assert made["environment"] == {"V": str(tmp_path)}
    assert made["clear"] is True


def test_a_known_class_has_a_kit_and_given_options_win() -> None:
    """An unknown class, or a known one with options, is judged with just those."""
    file = known_kits()[0]
    assert kit_for(file.sglang_class, {}).name == "file"
    given = kit_for(file.sglang_class, {"extra_config": {"file_storage_path": "/kv"}})
    assert given.name == "HiCacheFile"
    assert given.options == {"extra_config": {"file_storage_path": "/kv"}}


def test_a_thread_sets_no_signal_handler_and_does_not_fail_at_it() -> None:
    """The main thread still does; afterwards Python's own rule is back."""
    before = signal.getsignal(signal.SIGUSR1)
    raised: list[Exception] = []

    def set_it() -> None:
        try:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        except ValueError as error:
            raised.append(error)

    def in_a_thread() -> None:
        thread = threading.Thread(target=set_it)
        thread.start()
        thread.join()

    try:
        with handlers_left_out_in_threads():
            in_a_thread()
            assert (raised, signal.getsignal(signal.SIGUSR1)) == ([], before)
            set_it()
            assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
        in_a_thread()
        assert len(raised) == 1
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("bad", ["HiCacheFile", "module:", ":Class", "a:b:c"])
def test_a_class_is_named_by_module_and_class(bad: str) -> None:
    """Anything else is refused with the form."""
    with pytest.raises(OptionError, match="MODULE:CLASS"):
        parse_options(SglangOptions, {"sglang_class": bad})


def test_a_page_of_v1_has_two_equal_halves() -> None:
    """So its regions are even; the generic path takes any size."""
    assert capabilities_under(SglangOptions(sglang_class="m:C", path="generic")).alignment == 1
    assert capabilities_under(SglangOptions(sglang_class="m:C")).alignment == 2


@pytest.mark.parametrize("arguments", [["conformance"], ["conformance", "file", "--sglang-class", "m:C"]])
def test_the_command_wants_a_name_or_a_class(arguments: list[str]) -> None:
    """Neither and both are answered in one line."""
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code != 0
    assert "--sglang-class" in f"{done.output}{done.exception}"
