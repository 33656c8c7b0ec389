"""defaults < file < environment < flags; what is wrong is named with the place where it was given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hicache_core.config.corrections import Correction
from hicache_core.config.explain import explain
from hicache_core.config.load import ResolvedConfig, resolve
from hicache_core.config.model import HiCacheConfig
from hicache_core.config.names import FIELDS, VARIABLES, flag, variable
from hicache_core.errors import ConfigError, OptionError, UnknownNameError

ON = {"enable_hierarchical_cache": True}


def resolved(flags: dict[str, Any] | None = None, env: dict[str, str] | None = None, **more: Any) -> ResolvedConfig:
    return resolve({**ON, **(flags or {})}, env=env or {}, **more)


Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def put(name: str, text: str) -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return put


def test_defaults_are_todays() -> None:
    found = resolve(env={})
    assert found.config == HiCacheConfig()
    assert (found.config.hicache_mem_layout, found.config.prefetch_timeout_max) == ("page_first", None)
    assert {str(source) for source in found.sources.values()} == {"default"}
    assert found.corrections == []


def test_sglangs_defaults_by_compat() -> None:
    found = resolved({"compat": "sglang-2026-06", "prefetch_timeout_base": 0.5})
    config = found.config
    assert (config.hicache_mem_layout, config.hicache_ratio) == ("layer_first", 2.0)
    assert (config.prefetch_timeout_per_ki_token, config.prefetch_timeout_max) == (0.1, 30.0)
    assert config.prefetch_timeout_base == 0.5
    assert str(found.sources["hicache_mem_layout"]) == "compat sglang-2026-06"
    sized = resolved({"compat": "sglang-2026-06", "hicache_size": 10})
    assert (sized.config.hicache_ratio, sized.corrections) == (None, [])


def test_later_sources_win_and_all_are_told(write: Write) -> None:
    file = write("hicache.toml", 'hicache-ratio = 1.0\npage_size = 16\nhicache_write_policy = "write_back"\n')
    found = resolved({"--hicache-ratio": "3"}, {"HICACHE_RATIO": "2", "HICACHE_PAGE_SIZE": "32"}, file=file)
    assert (found.config.hicache_ratio, found.config.page_size, found.config.hicache_write_policy) == (
        3.0,
        32,
        "write_back",
    )
    sources = {name: str(found.sources[name]) for name in ("hicache_ratio", "page_size", "hicache_write_policy")}
    assert sources == {
        "hicache_ratio": "flag --hicache-ratio",
        "page_size": "environment HICACHE_PAGE_SIZE",
        "hicache_write_policy": f"file {file}",
    }
    assert [(v, str(s)) for v, s in found.overridden["hicache_ratio"]] == [
        (1.0, f"file {file}"),
        (2.0, "environment HICACHE_RATIO"),
    ]


def test_the_file_may_come_from_the_environment(write: Write) -> None:
    file = write("c.json", '{"page_size": 8}')
    assert resolved(env={"HICACHE_CONFIG": str(file)}).config.page_size == 8


@pytest.mark.parametrize("name", FIELDS)
def test_every_setting_has_its_own_flag_and_variable(name: str) -> None:
    assert flag(name).startswith("--")
    assert VARIABLES[variable(name)] == name


def test_sglangs_spellings() -> None:
    flags = {"enable-hicache": True, "--hicache-mem-layout": "page_head", "radix-eviction-policy": "lfu"}
    found = resolve(flags, env={})
    assert (found.config.hicache_mem_layout, found.config.eviction_policy) == ("page_head", "lfu")


def test_flags_that_are_none_were_not_given() -> None:
    assert str(resolved({"page_size": None}).sources["page_size"]) == "default"
    assert (
        resolved({"prefetch_timeout_max": "none"}, {"HICACHE_PREFETCH_TIMEOUT_MAX": "5"}).config.prefetch_timeout_max
        is None
    )


def test_extra_config_is_split() -> None:
    extra = '{"prefetch_threshold": 512, "prefetch_timeout_max": 0.5, "root": "/kv", "depth": 3}'
    found = resolved({"hicache_storage_backend": "disk", "hicache_storage_backend_extra_config": extra})
    assert (found.config.prefetch_threshold, found.config.prefetch_timeout_max) == (512, 0.5)
    assert found.config.hicache_storage_backend_options == {"root": "/kv", "depth": 3}
    assert found.backend is not None
    assert found.backend.options.depth == 3
    assert str(found.sources["prefetch_threshold"]) == "flag --hicache-storage-backend-extra-config"


@pytest.mark.parametrize("suffix", ["json", "toml", "yaml"])
def test_extra_config_from_a_file(write: Write, suffix: str) -> None:
    text = {"json": '{"root": "/kv", "tp_lcm_size": null}', "toml": 'root = "/kv"', "yaml": "root: /kv"}[suffix]
    extra = write(f"extra.{suffix}", text)
    env = {"HICACHE_STORAGE_BACKEND": "disk", "HICACHE_STORAGE_BACKEND_EXTRA_CONFIG": f"@{extra}"}
    assert resolved(env=env).config.hicache_storage_backend_options == {"root": "/kv"}


def test_interface_v1_needs_no_turning_on() -> None:
    found = resolved({"hicache_storage_backend": "disk", "hicache_storage_backend_extra_config": {"interface_v1": 1}})
    assert [c.field for c in found.corrections] == ["interface_v1"]


def test_backend_options_of_a_command_line_are_text() -> None:
    found = resolved({"hicache_storage_backend": "disk"}, backend_options={"depth": "7", "root": "/a"})
    assert found.config.hicache_storage_backend_options == {"depth": 7, "root": "/a"}


def test_options_of_several_sources_are_merged(write: Write) -> None:
    file = write("c.yaml", "hicache_storage_backend: {backend: disk, options: {root: /file, depth: 2}}\n")
    found = resolved(file=file, backend_options={"root": "/flag"})
    assert found.config.hicache_storage_backend_options == {"root": "/flag", "depth": 2}
    assert {n: s.kind for n, s in found.option_sources.items()} == {"root": "flag", "depth": "file"}


def test_options_of_a_replaced_backend_are_dropped(write: Write) -> None:
    file = write("c.yaml", "hicache_storage_backend: {backend: disk, options: {root: /file}}\n")
    found = resolved({"hicache_storage_backend": "wrap"}, file=file)
    assert found.config.hicache_storage_backend_options == {}
    assert found.overridden["hicache_storage_backend"][0][0] == "disk"


def test_a_backend_by_url() -> None:
    found = resolved({"hicache_storage_backend": "disk://?root=/kv&depth=4"})
    assert found.backend is not None
    assert (found.backend.options.root, found.backend.options.depth) == ("/kv", 4)
    assert found.config.hicache_storage_backend_options == {}
    mapping = resolved({"hicache_storage_backend": {"url": "disk://?depth=5"}})
    assert mapping.backend is not None
    assert mapping.backend.options.depth == 5


def test_options_of_a_wrapper_pass_through() -> None:
    found = resolved({"hicache_storage_backend": "wrap"}, backend_options={"inner": "disk", "root": "/kv"})
    assert found.config.hicache_storage_backend_options == {"inner": "disk", "root": "/kv"}


def test_unlike_variables_are_only_listed() -> None:
    found = resolved(env={"HICACHE_SOMETHING_ELSE": "1", "HICACHE_DISABLE_PLUGINS": "x", "PATH": "/bin"})
    assert found.unknown_variables == ["HICACHE_SOMETHING_ELSE"]


DISK = {"hicache_storage_backend": "disk"}
EXTRA = "hicache_storage_backend_extra_config"
BACKEND, OPTIONS = "hicache_storage_backend", "hicache_storage_backend_options"
BAD: list[tuple[dict[str, Any], dict[str, str], type[Exception], str]] = [
    (
        {"hicache_ratoi": 1},
        {},
        OptionError,
        r"flag --hicache-ratoi: unknown option 'hicache_ratoi'; did you mean 'hicache_ratio'",
    ),
    ({"ratio": 1}, {}, OptionError, "did you mean 'hicache_ratio'"),
    ({"qqqq": 1}, {}, OptionError, "unknown option 'qqqq'. Options: enable_hierarchical_cache"),
    ({}, {"HICACHE_RATOI": "1"}, OptionError, "unknown variable HICACHE_RATOI; did you mean HICACHE_RATIO"),
    ({}, {"HICACHE_RATIO": "much"}, OptionError, "environment HICACHE_RATIO: hicache_ratio: expected float"),
    ({"page_size": 48}, {}, OptionError, "page_size 48 is not a power of two; the nearest are 32 and 64"),
    ({"page_size": 0}, {}, OptionError, "page_size 0 is not a power of two; the smallest is 1"),
    ({"page_size": "many"}, {}, OptionError, "flag --page-size: page_size: expected int"),
    ({"hicache_ratio": 0}, {}, OptionError, "hicache_ratio: expected float > 0"),
    ({"hicache_size": -1}, {}, OptionError, "hicache_size"),
    *(
        ({name: float(value)}, {}, OptionError, name)
        for name, kind in FIELDS.items()
        if "float" in str(kind)
        for value in ("inf", "-inf", "nan", "-1")
    ),
    ({"storage_workers": 100_000}, {}, OptionError, "storage_workers: expected int <= 1024"),
    ({"hicache_size": 64e9}, {}, OptionError, "looks like bytes"),
    (
        {"hicache_write_policy": "write_thru"},
        {},
        OptionError,
        "hicache_write_policy: 'write_thru' is none of .*; did you mean 'write_through'",
    ),
    ({"hicache_mem_layout": "page_frist"}, {}, OptionError, "did you mean 'page_first'"),
    ({"eviction_policy": "lur"}, {}, UnknownNameError, "unknown eviction policy 'lur'; did you mean 'lru'"),
    ({"compat": "sglang"}, {}, OptionError, "compat"),
    ({"prefetch_threshold": 0}, {}, OptionError, "prefetch_threshold: expected int >= 1"),
    ({"hicache_ratio": 1, "hicache-ratio": 2}, {}, OptionError, "hicache_ratio is given twice"),
    (
        {**DISK, EXTRA: '{"prefetch_threshold": 1}', "prefetch_threshold": 2},
        {},
        OptionError,
        "prefetch_threshold is given twice",
    ),
    (
        {**DISK, EXTRA: '{"prefetch_threshold": "many"}'},
        {},
        OptionError,
        "extra-config: prefetch_threshold: expected int",
    ),
    (
        {**DISK, EXTRA: '{"prefetch_treshold": 1}'},
        {},
        OptionError,
        "unknown option 'prefetch_treshold'; did you mean 'prefetch_threshold'",
    ),
    ({**DISK, EXTRA: '{"rot": "/x"}'}, {}, OptionError, "backend 'disk': unknown option 'rot'; did you mean 'root'"),
    ({**DISK, EXTRA: '{"depth": "2"}'}, {}, OptionError, "'depth': expected int, got str"),
    ({**DISK, EXTRA: '{"root": '}, {}, ConfigError, "flag --hicache-storage-backend-extra-config: is no sound JSON"),
    ({**DISK, EXTRA: 5}, {}, OptionError, "must be a mapping or text"),
    ({**DISK, EXTRA: {1: 2}}, {}, OptionError, "option names are text, got 1"),
    ({**DISK, EXTRA: '{"a": ' * 100_000}, {}, ConfigError, "is no sound JSON: brackets are nested too deeply"),
    ({**DISK, OPTIONS: "[" * 100_000}, {}, OptionError, "brackets are nested too deeply"),
    ({BACKEND: {"backend": "disk", "options": 5}}, {}, OptionError, "options: must be a mapping .*, got int"),
    ({BACKEND: {"backend": "disk", "options": {1: 2}}}, {}, OptionError, "option names are text, got 1"),
    ({**DISK, EXTRA: '{"interface_v1": false}'}, {}, OptionError, "interface_v1=False is not built"),
    ({**DISK, EXTRA: '{"allocator": "shm"}'}, {}, OptionError, "allocator='shm' is not built"),
    (
        {EXTRA: '{"root": "/x"}'},
        {},
        OptionError,
        r"backend options are given \(root\), but no hicache_storage_backend",
    ),
    ({"hicache_storage_backend": "dsik"}, {}, UnknownNameError, "did you mean 'disk'"),
    ({"hicache_storage_backend": {"url": "disk://", "backend": "disk"}}, {}, OptionError, "give either"),
    ({"hicache_storage_backend": "disk://?rot=1"}, {}, OptionError, "did you mean 'root'"),
    ({"hicache_storage_backend": "disk://?root=1", EXTRA: '{"depth": 1}'}, {}, ConfigError, "beside the URL"),
    ({"disable_radix_cache": True}, {}, ConfigError, "exclude each other"),
    (
        {"enable_hierarchical_cache": False, **DISK},
        {},
        OptionError,
        "hicache_storage_backend has no effect: enable_hierarchical_cache is off",
    ),
    ({"enable_hierarchical_cache": False, "hicache_ratio": 2}, {}, OptionError, "hicache_ratio has no effect"),
    (
        {"disaggregation_decode_enable_offload_kvcache": True, **DISK},
        {},
        ConfigError,
        "only with disaggregation_mode decode",
    ),
    ({"disaggregation_decode_enable_radix_cache": True}, {}, ConfigError, "only with disaggregation_mode decode"),
    (
        {"disaggregation_mode": "decode", "disaggregation_decode_enable_offload_kvcache": True},
        {},
        ConfigError,
        "needs a hicache_storage_backend",
    ),
    ({"disaggregation_mode": "prefill"}, {}, ConfigError, "disaggregation_mode prefill is not built yet"),
    ({"hicache_io_backend": "kernel_ascend"}, {}, ConfigError, "kernel_ascend is not built yet"),
    ({"tp_lcm_size": 8, "hicache_mem_layout": "page_head"}, {}, ConfigError, "tp_lcm_size is not built yet"),
]


@pytest.mark.parametrize(("flags", "env", "error", "said"), BAD)
def test_a_bad_configuration_is_refused_by_name(
    flags: dict[str, Any], env: dict[str, str], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        resolved(flags, env)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("c.toml", "hicache_ratoi = 1", r"c\.toml: unknown option 'hicache_ratoi'"),
        ("c.json", '{"page_size": "64"}', r"c\.json: page_size: expected int, got str"),
        ("c.json", "{", "no sound JSON"),
        ("c.ini", "", "ends in none of"),
    ],
)
def test_a_bad_file_is_named(write: Write, name: str, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        resolved(file=write(name, text))


H5: list[tuple[dict[str, Any], tuple[str, str], list[str]]] = [
    ({"hicache_mem_layout": "page_first_direct"}, ("page_first_direct", "direct"), ["hicache_io_backend"]),
    ({"hicache_io_backend": "direct"}, ("page_first_direct", "direct"), ["hicache_mem_layout"]),
    ({"hicache_mem_layout": "layer_first"}, ("layer_first", "kernel"), []),
    ({"hicache_mem_layout": "layer_first", "hicache_io_backend": "direct"}, ("layer_first", "direct"), []),
    ({"hicache_mem_layout": "page_first"}, ("page_first", "kernel"), []),
]


@pytest.mark.parametrize(("flags", "wanted", "fields"), H5)
def test_layout_and_io_backend_are_made_to_fit(
    flags: dict[str, Any], wanted: tuple[str, str], fields: list[str]
) -> None:
    found = resolved(flags)
    assert (found.config.hicache_mem_layout, found.config.hicache_io_backend) == wanted
    assert [c.field for c in found.corrections] == fields
    assert [name for name, source in found.sources.items() if source.kind == "correction"] == fields


@pytest.mark.parametrize(("io", "layout"), [("kernel", "page_first"), ("direct", "page_first_direct")])
def test_a_backend_that_cannot_take_layer_first(io: str, layout: str) -> None:
    flags = {"hicache_storage_backend": "disk", "hicache_mem_layout": "layer_first", "hicache_io_backend": io}
    assert resolved(flags).corrections == []
    found = resolved({**flags, EXTRA: {"page_only": True}})
    assert found.config.hicache_mem_layout == layout
    assert found.corrections == [
        Correction("hicache_mem_layout", "layer_first", layout, "disk cannot take layer_first")
    ]


def test_size_decides_over_ratio() -> None:
    found = resolved({"hicache_ratio": 2, "hicache_size": 100})
    assert found.config.hicache_ratio is None
    assert [c.field for c in found.corrections] == ["hicache_ratio"]


def test_each_correction_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        resolved({"hicache_io_backend": "direct"})
    assert [r.getMessage() for r in caplog.records] == [
        "hicache_mem_layout: page_first becomes page_first_direct: direct needs each layer of a page in one piece"
    ]


def test_without_looking_for_the_backend() -> None:
    found = resolved(
        {"hicache_storage_backend": "elsewhere", EXTRA: {"token": "hunter2", "x": 1}}, check_backend=False
    )
    assert found.backend is None
    assert found.config.hicache_storage_backend_options == {"token": "hunter2", "x": 1}
    rows = {row.name: row.value for row in explain(found)}
    assert (rows["backend.token"], rows["backend.x"]) == ("***", 1)
