"""What cannot work is refused when the store is opened, with cause and mend, before the SDK would block."""

import http.server
import os
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from hicache_mooncake.options import MooncakeOptions, capabilities
from hicache_mooncake.probe import probe
from hicache_mooncake.sdk import missing_text

from hicache_core.errors import CapacityError, ConfigError, MisuseError, OpenError, OptionError
from hicache_core.plugin.select import choose_backend
from hicache_core.pools.geometry import KVGeometry
from hicache_core.pools.host import make_host_pool
from hicache_core.storage.seals import aligned_memory


@pytest.fixture
def bounded():
    """Every refusal comes well before the ten seconds that a user is promised (the SDK's own takes ninety)."""
    began = time.monotonic()
    yield
    took = time.monotonic() - began
    if took > 10:
        pytest.fail(f"the refusal took {took:.1f} s")


def test_nobody_listens(connect, bounded):
    with pytest.raises(OpenError, match=r"no Mooncake server at master_address=127.0.0.1:1: .*Start one"):
        connect(master_address="127.0.0.1:1")


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:", ":50051", "h:0", "h:99999", "h:x"])
def test_no_address(connect, address):
    with pytest.raises(OptionError, match=r"is no host:port, such as"):
        connect(master_address=address)


def test_no_such_host(connect, bounded):
    with pytest.raises(OpenError, match=r"cannot be resolved"):
        connect(master_address="no-such-host.invalid:50051")
    with pytest.raises(OpenError, match=r"host='no-such-host.invalid' cannot be resolved"):
        connect(host="no-such-host.invalid")


def test_something_that_never_answers(connect, bounded):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with pytest.raises(OpenError, match=r"does not answer within"):
            connect(master_address=f"127.0.0.1:{silent.getsockname()[1]}")


def test_the_metrics_port_is_not_the_rpc_port(connect, store, bounded):
    with pytest.raises(OpenError, match=r"not that of its metrics"):
        connect(master_address=store.options["metrics_address"])


def test_another_server(connect, bounded):
    class Talker(http.server.BaseHTTPRequestHandler):
        def handle(self):
            self.request.sendall(b"220 hello\r\n")

    with http.server.HTTPServer(("127.0.0.1", 0), Talker) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        try:
            with pytest.raises(OpenError, match=r"no Mooncake server"):
                connect(master_address=f"127.0.0.1:{other.server_port}")
        finally:
            other.shutdown()
            thread.join()


def test_no_metadata_server(connect, bounded):
    with pytest.raises(OpenError, match=r"P2PHANDSHAKE"):
        connect(metadata_server="http://127.0.0.1:1/metadata")


def test_no_standalone_client(connect, bounded):
    with pytest.raises(OpenError, match=r"standalone_address=127.0.0.1:1"):
        connect(standalone_address="127.0.0.1:1")


def test_more_memory_than_there_is(connect):
    with pytest.raises(CapacityError, match=r"segment_size=\d+.*more memory than is free"):
        connect(segment_size=1 << 46)


def test_a_pool_larger_than_the_store(connect, serve):
    handle = connect(**serve(owners=0, segment_bytes=16 << 20).options)
    pool = make_host_pool(KVGeometry("mha", 8, 8, 64, page_size=64), "page_first", 40)
    with pytest.raises(CapacityError, match="give the store more memory"):
        handle.backend.register_host_pool(pool)


def test_registered_twice(connect):
    handle = connect()
    memory = aligned_memory(1 << 16)
    handle.backend.register_region(memory)
    with pytest.raises(MisuseError, match="registered already as session memory; unregister"):
        handle.backend.register_region(memory)
    with pytest.raises(MisuseError, match="overlap"):
        handle.backend.register_region(memory[4096:8192])
    handle.backend.unregister_region(memory)
    handle.backend.register_region(memory)
    pool = make_host_pool(KVGeometry("mha", 2, 2, 8, page_size=16), "page_first", 4)
    handle.backend.register_host_pool(pool)
    with pytest.raises(MisuseError, match="host pool kv is registered"):
        handle.backend.register_host_pool(pool)
    handle.backend.unregister_host_pool(pool)
    handle.backend.register_host_pool(pool)
    with pytest.raises(MisuseError, match="not registered"):
        handle.backend.unregister_region(aligned_memory(64))


def test_a_password_in_an_address_is_not_shown(connect):
    with socket.socket() as closed:  # bound, and nobody listens
        closed.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(OpenError) as caught:
            connect(metadata_server=f"http://user:hunter2@{where}/metadata")
    assert where in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_urls_and_choices():
    options = choose_backend("mooncake://10.0.0.1:50051?segment_size=4GB&replicas=2").options
    assert options == MooncakeOptions(master_address="10.0.0.1:50051", segment_size=4_000_000_000, replicas=2)
    with pytest.raises(OptionError, match="host:port only"):
        choose_backend("mooncake://u:secret@h:1")
    with pytest.raises(ConfigError, match="protocol"):
        choose_backend({"backend": "mooncake", "options": {"master_address": "h:1", "protocol": "tpc"}})
    assert not capabilities(options).durable
    assert not capabilities(options).scan


def test_what_an_import_error_means():
    assert "apt-get install -y libibverbs1" in missing_text(ImportError("libibverbs.so.1: cannot open shared object"))
    assert "hicache-mooncake[non-cuda]" in missing_text(ImportError("libcudart.so.12: cannot open shared object"))
    assert "hicache-mooncake[cuda]" in missing_text(ModuleNotFoundError("No module named 'mooncake'"))


def test_doctor(store):
    assert probe(None) == []
    assert probe(MooncakeOptions(**store.options)) == []
    [complaint] = probe(MooncakeOptions(master_address="127.0.0.1:1"))
    assert "master_address=127.0.0.1:1" in complaint


def test_the_plugin_imports_no_sdk():
    heavy = "('mooncake', 'torch', 'hicache_core.storage')"
    code = f"import sys, hicache_mooncake.plugin; print([m for m in {heavy} if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def _threads_and_descriptors():
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


def test_closing_leaves_nothing(connect):
    def cycle():
        handle = connect()
        handle.backend.register_region(memory)
        handle.set(handle.keys(2))
        handle.backend.close()
        handle.backend.close()
        with pytest.raises(MisuseError, match="closed"):
            handle.there(handle.keys(1))
        assert handle.backend._lending.registered_bytes == 0

    memory = aligned_memory(1 << 16)
    for _ in range(3):  # the SDK keeps a pool of threads for the process, made when first needed
        cycle()
    before = np.array(_threads_and_descriptors())
    for _ in range(4):
        cycle()
    assert (np.array(_threads_and_descriptors()) - before <= 1).all()


def test_a_forked_child_may_not_use_it_and_ends(connect):
    handle = connect()
    [key] = handle.keys(1)
    handle.set([key])
    child = os.fork()
    if not child:
        try:
            handle.there([key])
        except MisuseError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert handle.there([key]) == [True]
