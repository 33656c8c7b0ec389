"""What can be wrong with a place is said when it is opened, with the mend, soon, and without secrets."""

import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time

import pytest
from hicache_s3 import opening
from hicache_s3.backend import open_s3
from hicache_s3.daemon_pool import DaemonPool
from hicache_s3.options import S3Options
from hicache_s3.probe import probe
from s3_stand_in import StandIn

from hicache_core.errors import MissingDependencyError, OpenError, OptionError
from hicache_core.plugin.select import choose_backend, open_backend
from hicache_core.types import OpenContext

CTX = OpenContext(namespace="0" * 32)
SECRET = "hunter2-hunter2"


def refused(error, **options):
    """The refusal's text; it came within ten seconds."""
    start = time.monotonic()
    with pytest.raises(error) as caught:
        open_s3(S3Options(**options), CTX).close()
    assert time.monotonic() - start < 10
    text = str(caught.value)
    assert SECRET not in text
    return text


def test_a_wrong_secret(place):
    text = refused(OpenError, **{**place, "secret_access_key": SECRET})
    assert "the secret does not fit the access key" in text
    assert "SignatureDoesNotMatch" in text


def test_an_unknown_access_key(place):
    text = refused(OpenError, **{**place, "access_key_id": "nobody", "secret_access_key": SECRET})
    assert "does not know these credentials" in text


def test_a_bucket_that_is_not_there(place):
    text = refused(OpenError, **{**place, "url": "s3://no-such-bucket/kv"})
    assert "the bucket of s3://no-such-bucket/kv is not there; make it, or name another" in text


def test_an_endpoint_that_nobody_listens_on(place):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        text = refused(OpenError, **{**place, "endpoint": f"http://127.0.0.1:{held.getsockname()[1]}"})
    assert "the endpoint does not answer; check that the server runs, and option endpoint" in text


def test_an_endpoint_that_never_answers_is_refused_within_ten_seconds(monkeypatch):
    """What was started for the opening is given less time to end than a store that was in use."""
    asked = []
    monkeypatch.setattr(DaemonPool, "close", lambda pool, patience: asked.append(patience) or 0)
    monkeypatch.setattr(opening, "once", lambda pool, job, deadline: (_ for _ in ()).throw(TimeoutError()))
    options = S3Options(url="memory://silent")
    with pytest.raises(OpenError, match="did not answer within"):
        open_s3(options, CTX)
    assert options.open_timeout + sum(asked) < 9.6


def test_an_endpoint_that_never_answers(place):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        text = refused(OpenError, **{**place, "endpoint": endpoint, "open_timeout": 0.5, "timeout": 0.4})
    assert "answer" in text
    assert endpoint in text


def test_a_host_that_does_not_exist(place):
    text = refused(OpenError, **{**place, "endpoint": "http://no-such-host.invalid:9000"})
    assert "option endpoint" in text


def test_keys_that_may_not_write(stand_in):
    stand_in.fail = lambda method, path: (403, "AccessDenied") if method == "PUT" else None
    assert "s3:PutObject" in refused(OpenError, **stand_in.options)
    stand_in.fail = lambda method, path: (403, "AccessDenied")
    assert "s3:ListBucket" in refused(OpenError, **stand_in.options)


def test_the_wrong_region(stand_in):
    stand_in.fail = lambda method, path: (400, "AuthorizationHeaderMalformed")
    assert "set option region" in refused(OpenError, **stand_in.options)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("s3://", "names no bucket"),
        ("s3:///kv", "names no bucket"),
        ("s3://b/../kv", "an empty segment"),
        ("s3://b/a//c", "an empty segment"),
        ("s3://b/kv?region=x", "an option of its own"),
        (f"s3://me:{SECRET}@b/kv", "credentials before the bucket"),
        ("bucket/kv", "is no URL"),
        ("s4://b/kv", "fsspec knows no protocol 's4'"),
        ("file:///", "root of the file system"),
    ],
)
def test_a_url_that_cannot_be(url, says):
    assert says in refused(OptionError, url=url, access_key_id="a", secret_access_key="b")


def test_obstore_asked_for_what_it_does_not_know():
    text = refused(OptionError, url="s3b://b", client="obstore")
    assert "did you mean s3://" in text
    assert "fsspec opens it" in refused(OptionError, url="sftp://host/kv", client="obstore")


def test_a_setting_that_obstore_does_not_know(place):
    text = refused(OptionError, **place, storage_options={"buckett": "x"})
    assert "buckett" in text
    assert "storage_options" in text


def test_a_protocol_whose_package_is_missing(monkeypatch):
    import fsspec.core

    def missing(*args, **kwargs):
        raise ImportError("Install gcsfs to access Google Storage")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    assert "Install gcsfs" in refused(OpenError, url="gs://b/kv", client="fsspec")


def test_plain_http_is_refused_unless_asked_for(place):
    text = refused(OptionError, **{**place, "allow_http": False})
    assert "allow_http=true" in text


@pytest.mark.parametrize(
    "endpoint", ["127.0.0.1:9000", "ftp://h", "http://", "https://h:x", f"https://me:{SECRET}@h"]
)
def test_an_endpoint_of_another_form(place, endpoint):
    assert "https://HOST[:PORT]" in refused(OptionError, **{**place, "endpoint": endpoint})


def test_a_ca_file_that_is_not_there(place):
    assert "ca_file='/no/such.pem' cannot be read" in refused(OptionError, **place, ca_file="/no/such.pem")


@pytest.fixture
def tls(tmp_path):
    """A stand-in behind a certificate of its own authority: options without and the PEM file with."""
    if shutil.which("openssl") is None:
        pytest.skip("no certificate can be made here: apt-get install openssl")
    pem, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(pem)]
    command += ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*command, "-addext", "basicConstraints=critical,CA:FALSE"], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, key)
    with StandIn() as made:
        made._server.socket = context.wrap_socket(
            made._server.socket, server_side=True, do_handshake_on_connect=False
        )
        options = {**made.options, "endpoint": made.options["endpoint"].replace("http:", "https:")}
        yield {**options, "allow_http": False, "retries": 0}, pem


def test_tls_with_an_authority_of_ones_own(tls, open_at):
    options, pem = tls
    assert "ca_file" in refused(OpenError, **options) + "ca_file"
    text = refused(OpenError, **options)
    assert "does not answer" in text or "not trusted" in text
    store = open_at(**options, ca_file=str(pem))
    assert all(store.set(store.key(1)))
    assert store.get(store.key(1)) == (store.get(store.key(1))[0], b"v" * 1000)


def test_tls_without_any_check_only_when_asked_for(tls, open_at):
    options, _ = tls
    store = open_at(**options, insecure_tls=True)
    assert all(store.set(store.key(1)))
    assert any("insecure_tls" in said for said in probe(store.options))


def test_an_https_endpoint_that_speaks_http(stand_in):
    endpoint = stand_in.options["endpoint"].replace("http:", "https:")
    assert "endpoint" in refused(OpenError, **{**stand_in.options, "endpoint": endpoint, "retries": 0})


def test_secrets_are_shown_nowhere(place):
    choice = choose_backend("s3", {**place, "secret_access_key": SECRET, "session_token": SECRET + "t"})
    assert SECRET not in str(choice.shown_options())
    assert SECRET not in repr(choice)
    nested = choose_backend("s3", {**place, "storage_options": {"account_key": SECRET}})
    assert SECRET not in str(nested.shown_options())
    with pytest.raises(OptionError) as caught:
        choose_backend(f"s3://me:{SECRET}@bucket/kv")
    assert SECRET not in str(caught.value)


def test_options_in_a_url():
    choice = choose_backend("s3://bucket/a/b?region=eu-west-1&concurrency=4&multipart_threshold=8MiB&allow_http=true")
    assert choice.options == S3Options(
        url="s3://bucket/a/b", region="eu-west-1", concurrency=4, multipart_threshold=8 << 20, allow_http=True
    )
    assert choose_backend("s3://?url=gs://bucket/kv").options == S3Options(url="gs://bucket/kv")


@pytest.mark.parametrize(
    ("options", "says"),
    [({}, "'url' is required"), ({"url": "s3://b", "regoin": "x"}, "did you mean 'region'")],
)
def test_wrong_options_name_the_right_ones(options, says):
    with pytest.raises(OptionError, match=says):
        choose_backend("s3", options)


def test_what_is_declared_follows_from_the_url():
    def declared(url, **options):
        return choose_backend("s3", {"url": url, **options}).capabilities

    assert declared("s3://b").durable
    assert declared("s3://b").reports_exists
    assert declared("gs://b").delete == "immediate"
    assert not declared("s3://b", conditional="off").reports_exists
    assert not declared("memory://b").durable
    assert not declared("memory://b").shared
    assert declared("file:///b").reports_exists
    assert not declared("sftp://h/b").reports_exists
    assert declared("sftp://h/b").delete == "eventual"


def test_the_entry_points_module_is_light():
    code = (
        "import sys, hicache_s3.plugin;"
        "print([m for m in ('torch', 'obstore', 'fsspec', 'hicache_s3.backend', 'asyncio') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_missing_client_is_told_with_its_install_line(monkeypatch):
    monkeypatch.setattr("hicache_core.plugin.select.module_exists", lambda name: name != "obstore")
    with pytest.raises(MissingDependencyError, match="pip install 'obstore"):
        open_backend(choose_backend("s3", {"url": "s3://b"}), CTX)


def test_probe_tells_what_doctor_should_say(place, stand_in):
    assert probe(None) == []
    assert any("plain http" in said for said in probe(S3Options(**stand_in.options)))
    assert not stand_in.objects, "a probe makes nothing"
    assert "is not there" in probe(S3Options(**{**place, "url": "s3://no-such-bucket"}))[0]
    assert "allow_http" in probe(S3Options(**{**place, "allow_http": False}))[0]


def test_many_open_at_once(place):
    """Opening is safe to do side by side, on a place that is new to all."""
    failures = []

    def run():
        try:
            open_s3(S3Options(**place, open_timeout=60.0), CTX).close()
        except Exception as error:  # noqa: BLE001 - raised below
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert not failures
