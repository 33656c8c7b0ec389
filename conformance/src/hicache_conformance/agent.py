"""The other process: opens the backend anew and reads or writes until it is done, or killed.

`python -m hicache_conformance.agent FILE` imports what FILE (JSON) names, then forks a child for each order that
comes as a JSON line on stdin, so that a kill costs milliseconds, not the start of an interpreter. It is
single-threaded, so forking is safe. Every line it prints is JSON with the child's `pid`.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

from hicache_conformance.material import POISON, Lent, page_bytes
from hicache_core.types import OpenContext, Outcome


def main(path: str) -> None:
    """Take orders until stdin ends."""
    setup = json.loads(Path(path).read_text())
    sys.path[:] = setup["path"]
    target = _target(setup)
    before_fork = getattr(target.kit, "before_fork", None)
    if before_fork is not None:
        before_fork(setup["options"])
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            _child(target, setup, json.loads(line))
        _, status = os.waitpid(pid, 0)
        _say(pid=pid, event="ended", status=status)


def _target(setup: dict[str, Any]) -> Any:
    from hicache_conformance.target import Target

    if setup["spec_ref"] is None:
        return Target(setup["backend"], setup["options"], strict=setup["strict"])
    module, _, attribute = setup["spec_ref"].partition(":")
    return Target(getattr(importlib.import_module(module), attribute), setup["options"], strict=setup["strict"])


def _child(target: Any, setup: dict[str, Any], order: dict[str, Any]) -> None:
    try:
        _obey(target, setup, order)
        code = 0
    except BaseException as error:  # noqa: BLE001 - the case must learn of it, whatever it is
        _say(pid=os.getpid(), event="failed", error=repr(error))
        code = 3
    sys.stdout.flush()
    os._exit(code)


def _obey(target: Any, setup: dict[str, Any], order: dict[str, Any]) -> None:
    """One order, or a row of them on one opened store: as long as an order says `more`, another line follows."""
    from hicache_conformance.driver import Driver, make_backend

    if order.get("file_size_limit"):
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["file_size_limit"], hard))
    enter = getattr(target.kit, "enter_process", None)
    if enter is not None:
        enter(setup["options"])
    resolved = target.resolve(Path(setup["directory"]))
    namespace = order.get("namespace") or setup["namespace"]
    context = OpenContext(namespace=namespace, seal_bytes=setup["stride"])
    store = Driver(make_backend(resolved.spec, resolved.options, context), resolved.capabilities)
    _say(pid=os.getpid(), event="opened")
    _DEEDS[order["do"]](store, order)
    while order.get("more"):
        order = json.loads(sys.stdin.readline())
        _DEEDS[order["do"]](store, order)
    if order.get("close"):
        store.close()
    if order.get("stay"):
        sys.stdin.readline()  # until someone kills this process, or nobody is left to give orders


def _set(store: Any, order: dict[str, Any]) -> None:
    """Set the keys in batches; with `again`, over and over, the version counting up."""
    step, shape, version = order["batch"], tuple(order["shape"]), order["version"]
    while True:
        for start in range(0, len(order["keys"]), step):
            keys = order["keys"][start : start + step]
            pages = [_page(store, key, shape, version) for key in keys]
            _say(pid=os.getpid(), event="begin", start=start, version=version)
            outcomes: list[Outcome] = store.set(keys, pages, replace=order["replace"])
            _say(pid=os.getpid(), event="done", start=start, outcomes=[o.value for o in outcomes])
        if not order.get("again"):
            return
        version += 1


def _get(store: Any, order: dict[str, Any]) -> None:
    """Read every key; which of them are HIT with the right bytes, and how long the run is that exists tells."""
    shape = tuple(order["shape"])
    pages = [Lent(shape, alignment=store.capabilities.alignment, fill=POISON) for _ in order["keys"]]
    outcomes = store.get(order["keys"], pages)
    right = [
        outcome is Outcome.HIT and page.data() == page_bytes(key, page.nbytes, order["version"])
        for key, page, outcome in zip(order["keys"], pages, outcomes, strict=True)
    ]
    found = store.exists(order["keys"])
    _say(pid=os.getpid(), event="read", right=right, found=found, outcomes=[o.value for o in outcomes])


def _delete(store: Any, order: dict[str, Any]) -> None:
    outcomes = store.delete(order["keys"])
    _say(pid=os.getpid(), event="deleted", outcomes=outcomes and [o.value for o in outcomes])


def _clear(store: Any, order: dict[str, Any]) -> None:
    _say(pid=os.getpid(), event="cleared", count=store.clear(order["what"]))


def _nothing(store: Any, order: dict[str, Any]) -> None:
    _say(pid=os.getpid(), event="ready")


_DEEDS = {"set": _set, "get": _get, "delete": _delete, "clear": _clear, "nothing": _nothing}


def _page(store: Any, key: str, shape: tuple[int, ...], version: int) -> Lent:
    return Lent(shape, alignment=store.capabilities.alignment, fill=page_bytes(key, sum(shape), version))


def _say(**event: Any) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
