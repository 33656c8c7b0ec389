from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest
from hicache_engine.demo import Demo
from hicache_engine.demo_damage import kill_while_writing, perturb_weights
from hicache_engine.demo_process import DemoError, Stage
from hicache_engine.demo_store import FileShelf, page_files
from hicache_engine.errors import ModelFileError
from hicache_engine.flags import engine_options

import hicache_core.weights as identity
from hicache_core.errors import ConfigError

PAGE = 64


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo")
    options = engine_options({"page_size": PAGE, "hicache_storage_prefetch_policy": "wait_complete"}, model="random")
    steps: list[str] = []
    report = Demo(out, options, rounds=1, min_ratio=0.0, say=steps.append).run()
    assert len(steps) >= 6
    assert json.loads((out / "report.json").read_text())["ok"] is report["ok"]
    return report


def test_every_check_holds_on_a_random_model(report):
    assert [f"{c.name}: {c.detail}" for c in report["checks"] if not c.passed] == []
    assert report["ok"] is True


def test_the_report_has_what_it_promises(report):
    tiers = report["tokens_by_tier"]
    assert report["pid_cold"] != report["pid_warm"]
    assert tiers["storage"] >= 1000
    assert sum(tiers.values()) == report["prompt_tokens"] >= 1040
    assert report["logits_max_abs_diff"]["aligned"] == 0.0
    assert report["logits_max_abs_diff"]["unaligned"] <= 1e-3
    assert report["text_equal"] is True
    assert report["ttft_ms"]["ratio"] > 0
    names = {"corrupt_page", "other_weights", "other_dtype", "other_tenant", "killed_writer", "l3_down"}
    assert set(report["cases"]) == names
    for case in report["cases"].values():
        assert case["text_equal"] is True
        assert sum(case["tokens_by_tier"].values()) == report["prompt_tokens"]
        assert case["reason"]


def test_a_store_that_is_there_is_used_through_its_back_door_and_keeps_what_it_has(tmp_path):
    root = tmp_path / "theirs"
    options = engine_options({"page_size": PAGE, "hicache_storage_prefetch_policy": "wait_complete"}, model="random")
    demo = Demo(
        tmp_path / "out",
        options,
        rounds=1,
        min_ratio=0.0,
        say=lambda step: None,
        backend="file",
        store_options={"root": str(root)},
    )
    report = demo.run()
    assert [f"{c.name}: {c.detail}" for c in report["checks"] if not c.passed] == []
    assert not (tmp_path / "out" / "store").exists()
    assert page_files(root)


@pytest.mark.parametrize(
    ("backend", "said"), [("nfs", "needs the plugin's back door"), ("file:///x", "takes a name")]
)
def test_a_store_without_a_back_door_is_refused(tmp_path, backend, said):
    with pytest.raises(ConfigError, match=said):
        Demo(tmp_path, engine_options(model="random"), rounds=1, min_ratio=0.0, say=print, backend=backend).run()


def test_a_folder_that_is_not_the_demos_keeps_what_it_has(tmp_path):
    kept = tmp_path / "work" / "thesis.txt"
    kept.parent.mkdir()
    kept.write_text("years")
    with pytest.raises(ConfigError, match="no demo made it"):
        Demo(tmp_path, engine_options(model="random"), rounds=1, min_ratio=0.0, say=print).run()
    assert kept.read_text() == "years"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["work"]


@pytest.mark.parametrize("out", ["file", "file/below"])
def test_a_folder_that_cannot_be_made_is_named(tmp_path, out):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--out .*file.* cannot be written"):
        Demo(tmp_path / out, engine_options(model="random"), rounds=1, min_ratio=0.0, say=print).run()


def test_a_process_that_fails_is_told_with_what_it_said(tmp_path):
    stage = Stage(tmp_path, engine_options(model=str(tmp_path / "no.gguf")), "x", FileShelf(tmp_path))
    with pytest.raises(
        DemoError, match=r"process A ended with 1: the model file .*no\.gguf does not exist"
    ) as failed:
        stage.run("A", [stage.life("a", None)])
    assert "Traceback" not in str(failed.value)


def test_perturbed_weights_are_other_weights(tmp_path, write_gguf):
    norm = ((4,), 0, bytes(range(16)))
    tensors = {"blk.0.attn_norm.weight": norm, "blk.0.ffn_norm.weight": norm}
    path = write_gguf(tmp_path / "m.gguf", {"k": 1}, tensors)
    other = perturb_weights(path, tmp_path / "other" / "m.gguf")
    assert other.stat().st_size == path.stat().st_size
    assert identity.sampled(other) != identity.sampled(path)
    changed = [a != b for a, b in zip(other.read_bytes(), path.read_bytes(), strict=True)]
    assert 0 < sum(changed) <= 16
    with pytest.raises(ModelFileError, match="no float32 attention norms"):
        perturb_weights(write_gguf(tmp_path / "n.gguf", {"k": 1}), tmp_path / "other.gguf")


def test_a_writer_is_killed_only_once_pages_are_there(tmp_path):
    script = (
        "import pathlib, sys\n"
        "space = pathlib.Path(sys.argv[1]) / 'space'; space.mkdir(parents=True)\n"
        "for i in range(3): (space / f'{i}.kv.l0-1h0-1').write_bytes(b'x')\n"
        "sys.stdin.read()\n"
    )
    shelf = FileShelf(tmp_path)
    argv = [sys.executable, "-c", script, shelf.main.options["root"]]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE)
    assert kill_while_writing(process, shelf, shelf.main, 3) == 3
    assert process.returncode == -signal.SIGKILL
    process.stdin.close()
