"""The rules for a configuration that was made in code: what is refused, and what is corrected."""

from __future__ import annotations

import pytest

from hicache_core.config.corrections import correct
from hicache_core.config.model import HiCacheConfig
from hicache_core.config.validation import validate
from hicache_core.errors import ConfigError, OptionError
from hicache_core.types import Capabilities


def test_a_backend_that_takes_only_the_other_layout() -> None:
    config = HiCacheConfig(hicache_mem_layout="layer_first")
    made = correct(config, Capabilities(layouts=("page_first_direct",)), "s")
    assert (config.hicache_mem_layout, config.hicache_io_backend) == ("page_first_direct", "direct")
    assert [c.field for c in made] == ["hicache_mem_layout", "hicache_io_backend"]
    with pytest.raises(ConfigError, match="takes only page_head"):
        correct(HiCacheConfig(), Capabilities(layouts=("page_head",)), "s")


def test_correction_leaves_nothing_to_correct() -> None:
    for layout in ("layer_first", "page_first", "page_first_direct", "page_head"):
        for io in ("kernel", "direct"):
            config = HiCacheConfig(hicache_mem_layout=layout, hicache_io_backend=io)  # type: ignore[arg-type]
            correct(config)
            assert correct(config) == []


def test_a_config_made_in_code_is_validated_alike() -> None:
    validate(HiCacheConfig())
    with pytest.raises(OptionError, match="page_size 3"):
        validate(HiCacheConfig(page_size=3))
