"""Everything that is taken from vLLM, and the differences between its releases.

The tier's interface is declared experimental and has changed with nearly every release. The tests run against 0.33.0
as it installs, and against the published source of 0.27.0 and 0.24.0 on top of 0.33.0's requirements.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import logging
import os
from collections.abc import Collection
from typing import Any

import vllm
from vllm.v1.kv_offload import base as _base
from vllm.v1.kv_offload.tiering import base as _tiering

SecondaryTierManager: Any = _tiering.SecondaryTierManager
RequestOffloadingContext: Any = _base.RequestOffloadingContext

_LookupResult: Any = getattr(_base, "LookupResult", None)
HIT: Any = _LookupResult.HIT if _LookupResult else True
MISS: Any = _LookupResult.MISS if _LookupResult else False
RETRY: Any = _LookupResult.RETRY if _LookupResult else None
"""Verdicts of a lookup; 0.24 has True, False and None for them."""

STORAGE: Any = _base.Medium.STORAGE if hasattr(_base, "Medium") else None

_RESULT_FIELDS = {field.name for field in dataclasses.fields(_tiering.JobResult)}
_EVENT_FIELDS = {field.name for field in dataclasses.fields(_base.OffloadingEvent)}
_TAKES_DETECTOR = "backpressure_detector" in inspect.signature(SecondaryTierManager.__init__).parameters

_log = logging.getLogger(__name__)


def version() -> str:
    """The installed release, without what a build adds ("0.33.0+cu130")."""
    return str(vllm.__version__).partition("+")[0]


@functools.cache
def warn_of_random_hashes() -> None:
    """One warning where each process hashes blocks by a seed of its own: nothing stored would be found again."""
    from vllm.v1.core import kv_cache_utils

    if "PYTHONHASHSEED" not in os.environ and not hasattr(kv_cache_utils, "DEFAULT_NONE_HASH_SEED"):
        _log.warning(
            "vLLM %s draws the seed of its block hashes in each process: no block that is stored now will be found "
            "after a restart or by another engine. Set PYTHONHASHSEED to the same number on all of them",
            version(),
        )


def base_arguments(detector: object) -> tuple[object, ...]:
    """What follows spec, view and type in the constructor of vLLM's own class."""
    return (detector,) if _TAKES_DETECTOR else ()


def chunks_of(job: Any) -> list[int]:
    """The primary rows of a transfer job (`block_ids` before 0.28)."""
    rows: Any = job.chunk_ids if hasattr(job, "chunk_ids") else job.block_ids
    found: list[int] = rows.tolist()
    return found


def job_result(
    job_id: int, success: bool, successful_keys: Collection[bytes] | None, seconds: float, nbytes: int
) -> Any:
    """A JobResult with what this release has fields for. Without successful_keys a partial success is a failure."""
    more = {"successful_keys": successful_keys, "transfer_time": seconds, "transfer_bytes": nbytes}
    known = {name: value for name, value in more.items() if name in _RESULT_FIELDS}
    return _tiering.JobResult(job_id=job_id, success=success, **known)


def stored_event(keys: list[bytes], locality: Any) -> Any:
    """A KV event: these keys are in this tier now."""
    more = {"locality": locality} if "locality" in _EVENT_FIELDS else {}
    return _base.OffloadingEvent(keys=keys, medium=STORAGE or "STORAGE", removed=False, **more)


def locality_of(name: str | None) -> Any:
    """vLLM's Locality for LOCAL or REMOTE; None where there is none."""
    return _base.Locality(name) if name and hasattr(_base, "Locality") else None


def events_enabled(spec: Any) -> bool:
    """Whether anybody takes KV events: they would pile up otherwise."""
    return bool(spec.kv_events_config.enable_kv_cache_events)
