from __future__ import annotations

import io
import json
import re
import subprocess
import sys

import httpx
import pytest
from hicache_engine import cli
from hicache_engine.flags import engine_options
from hicache_engine.spinning import limit_spinning

from hicache_core.cli.explain_command import load_identity
from hicache_core.offline.explain import explain_prefix
from hicache_core.offline.raw import RawStore
from hicache_core.plugin.select import choose_backend

SMALL = ["--model", "random", "--device-tokens", "1024", "--max-tokens", "8"]


@pytest.fixture
def run(monkeypatch, capsys):
    """run(*words, stdin=…) -> (exit code, stdout, stderr)"""

    def run(*words, stdin=""):
        monkeypatch.setattr(sys, "argv", ["hicache-engine", *map(str, words)])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, " ".join(said.err.split())

    return run


def test_a_question_is_answered_and_its_tokens_accounted(run):
    code, out, err = run("chat", *SMALL, "--prompt", "hello there")
    assert code == 0
    assert out.strip()
    assert "prompt tokens" in err
    assert "recomputed" in err


def test_json_is_all_that_is_said(run):
    code, out, _ = run("chat", *SMALL, "--prompt", "hello", "--json")
    answer = json.loads(out)
    assert code == 0
    assert answer["usage"]["recomputed"] == answer["usage"]["prompt_tokens"]


def test_a_conversation_goes_on_from_cached_tokens_and_survives_what_is_too_long(run):
    lines = "\n".join(["a question of some length", "", "x" * 2000, "and another"])
    code, out, err = run("chat", *SMALL, stdin=lines)
    assert code == 0
    assert "device" in err
    assert "more than this engine holds" in err
    assert len(out.splitlines()) >= 2


def test_another_process_finds_what_one_has_stored(run, tmp_path):
    words = ["chat", *SMALL, "--backend", "file", "-o", f"root={tmp_path / 'store'}", "--json"]
    words += [
        "--prefetch-threshold",
        "16",
        "--hicache-storage-prefetch-policy",
        "wait_complete",
        "--prompt",
        "x" * 200,
    ]
    first, second = (json.loads(run(*words)[1])["usage"] for _ in range(2))
    assert first["storage"] == 0
    assert second["storage"] > 0


def test_the_identity_is_that_of_the_stored_pages(run, tmp_path):
    root = tmp_path / "store"
    words = ["--model", "random", "--device-tokens", "1024", "--backend", "file", "-o", f"root={root}"]
    run("chat", *words, "--tenant", "t", "--max-tokens", "4", "--prompt", "x" * 200)
    code, out, _ = run("identity", *words, "--tenant", "t")
    (tmp_path / "identity.json").write_text(out)
    assert code == 0
    assert (root / load_identity(tmp_path / "identity.json").namespace()).is_dir()


def test_explain_finds_every_page_of_the_prompt_that_tokens_writes(run, tmp_path):
    words = ["--model", "random", "--backend", "file", "-o", f"root={tmp_path / 'store'}"]
    (tmp_path / "prompt.txt").write_text("x" * 200)
    question = f"@{tmp_path / 'prompt.txt'}"
    run("chat", *words, "--max-tokens", "4", "--system", "be brief", "--prompt", question)
    (tmp_path / "identity.json").write_text(run("identity", *words)[1])
    code, out, _ = run("tokens", "--model", "random", "--system", "be brief", question)
    assert code == 0
    with RawStore(choose_backend("file", {"root": str(tmp_path / "store")})) as store:
        rows = explain_prefix(store, load_identity(tmp_path / "identity.json"), json.loads(out))
    assert len(rows) > 12
    assert {row.state for row in rows[:-1]} == {"stored"}
    assert json.loads(run("tokens", "--model", "random", "--raw", "ab")[1]) == [97, 98]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--model", "/no/such.gguf"], "/no/such.gguf does not exist"),
        (["--model", "/tmp"], "/tmp is no file"),
        (["--model", ""], "the model file '' is no file"),
        (["--model", "random", "--threads", "-1"], "threads"),
        (["--model", "random", "--threads", "100000"], "threads"),
        (["--model", "random", "--seed", str(2**70)], "seed"),
        (["--model", "random", "--device", "meta"], "device 'meta' cannot be used"),
        (["--model", "random", "--device-tokens", str(10**12)], "device pool of"),
        (["--model", "random", "--prompt", "\ud800"], "not UTF-8"),
        (["--model", "random", "--system", "\ud800"], "not UTF-8"),
        (["--model", "random", "--prompt", "@/bin/sh"], "--prompt @/bin/sh"),
        (["--model", "random", "--backend", "fil"], "did you mean 'file'"),
        (["--model", "random", "--backend", "file", "-o", "rooot=/tmp"], "root"),
        (["--model", "random", "--backend", "file", "-o", "root"], "-o: 'root' is not of the form NAME=VALUE"),
        (["--model", "random", "--page-size", "24", "--chunk", "48"], "power of two"),
        (["--model", "random", "--chunk", "100"], "multiple of the page size"),
        (["--model", "random", "--dtype", "float33"], "did you mean 'float32'"),
        (["--model", "random", "--device", "quantum"], "quantum"),
        (["--model", "random", "--hicache-size", "9999999"], "GB"),
        (["--model", "random", "--eviction-policy", "lruu"], "did you mean 'lru'"),
        (["--model", "random", "--hicache-write-policy", "writeback"], "did you mean 'write_back'"),
        (["--model", "random", "--hicache-mem-layout", "page_frist"], "did you mean 'page_first'"),
        (["--model", "random", "--prompt", "@/no/file"], "/no/file"),
        (["--model", "random", "--temperature", "-1", "--prompt", "x"], "temperature is -1.0"),
    ],
)
def test_bad_input_is_one_clear_message(run, words, says):
    code, _, err = run("chat", "--prompt", "hello", *words)
    assert code in (2, 3)
    assert err.startswith("error:")
    assert says in err
    assert "Traceback" not in err


@pytest.mark.parametrize("port", ["-1", "65536"])
def test_a_port_that_cannot_be_is_refused_before_the_model_loads(run, port):
    code, _, err = run("serve", "--model", "/no/such.gguf", "--port", port)
    assert code == 2
    assert "--port" in err


def test_settings_come_from_file_and_environment_too(monkeypatch, tmp_path):
    path = tmp_path / "hicache.toml"
    path.write_text("page_size = 32\nhicache_ratio = 3.0\n")
    monkeypatch.setenv("HICACHE_EVICTION_POLICY", "slru")
    assert engine_options().cache.page_size == 16
    assert engine_options().cache.enable_cache_report
    monkeypatch.setenv("HICACHE_ENABLE_CACHE_REPORT", "no")
    assert not engine_options().cache.enable_cache_report
    cache = engine_options({"hicache_ratio": None, "prefetch_threshold": 64}, config=path).cache
    assert (cache.page_size, cache.hicache_ratio, cache.eviction_policy) == (32, 3.0, "slru")
    assert cache.prefetch_threshold == 64
    assert cache.enable_hierarchical_cache


def test_the_version_is_told(run):
    code, out, _ = run("--version")
    assert code == 0
    assert out.startswith("hicache-engine ")


def test_the_server_answers_over_a_socket_and_ends_on_sigterm(tmp_path):
    words = ["serve", "--model", "random", "--device-tokens", "1024", "--port", "0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "hicache_engine", *words], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stderr is not None
        running = re.compile(r"running on (http://127\.0\.0\.1:\d+)")
        address = next(found[1] for line in process.stderr if (found := running.search(line)))
        with httpx.Client(base_url=address, timeout=60, trust_env=False) as client:
            with client.stream(
                "POST", "/v1/completions", json={"prompt": "hi", "max_tokens": 4, "ignore_eos": True, "stream": True}
            ) as response:
                lines = [line for line in response.iter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        assert len(lines) >= 2
    finally:
        process.terminate()
        rest = process.communicate(timeout=60)[1]
    assert process.returncode in (0, -15), rest


def test_openmp_spins_briefly_unless_told_otherwise():
    free, counted, passive = {}, {"GOMP_SPINCOUNT": "9"}, {"OMP_WAIT_POLICY": "passive"}
    for environment in (free, counted, passive):
        limit_spinning(environment)
    assert int(free["GOMP_SPINCOUNT"]) < 10_000
    assert counted == {"GOMP_SPINCOUNT": "9"}
    assert passive == {"OMP_WAIT_POLICY": "passive"}


def test_help_does_not_wait_for_torch():
    code = "import sys, hicache_engine.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_help_names_every_flag_whole_in_80_columns(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = run("serve", "--help")
    assert code == 0
    assert "…" not in out
    assert {"--hicache-storage-backend-extra-config", "--hicache-storage-prefetch-policy"} <= set(out.split())
