# Sourced by the scripts beside it, which set up a real engine each: a virtual environment below .peers with the CPU
# build of torch, and hicache and its plugins editable in it. TORCH_VERSION and PYTHON choose others.
REPOSITORY=$(cd "$(dirname "$0")/../.." && pwd)
TORCH=${TORCH_VERSION:-2.13.0}

# start DIRECTORY [CONSTRAINT…]: sets TARGET and PY. No install replaces this torch, nor what the constraints name.
start() {
    mkdir -p "$1"
    TARGET=$(cd "$1" && pwd)
    PY=$TARGET/venv/bin/python
    shift
    [ -x "$PY" ] || "${PYTHON:-python3}" -m venv "$TARGET/venv"
    printf '%s\n' "torch==$TORCH" "$@" > "$TARGET/torch.txt"
}

install() { "$PY" -m pip install -q --disable-pip-version-check -c "$TARGET/torch.txt" "$@"; }

# has PACKAGE VERSION: whether just that is installed.
has() {
    [ "$("$PY" -c 'import importlib.metadata as m, sys; print(m.version(sys.argv[1]))' "$1" 2>/dev/null)" = "$2" ]
}

# The CPU build of torch, before anything that would bring another one.
install_torch() {
    install "torch==$TORCH" numpy
    keep_cpu_torch "this torch is a CUDA build: choose an index that has the CPU one"
}

# keep_cpu_torch COMPLAINT: end here where torch is a CUDA build.
keep_cpu_torch() {
    "$PY" -c 'import sys, torch; sys.exit(torch.version.cuda is not None)' || { echo "$1" >&2; exit 1; }
}

# install_hicache [DIRECTORY…]: what it and its tests need, unless the engine brought it; then hicache, its plugins
# and the further distributions of this checkout, without touching what the engine pinned.
install_hicache() {
    install msgspec pluggy pyyaml rich typer xxhash "pytest>=8,<10" "hatchling>=1.25,<2" "editables>=0.5,<1"
    for package in "$REPOSITORY" "$@" "$REPOSITORY"/plugins/*/; do
        [ -f "$package/pyproject.toml" ] || continue
        install --no-deps --no-build-isolation -e "$package" ||
            echo "$package could not be installed: its tests will be skipped" >&2
    done
}

# install_stores NAME…: Mooncake, and these of requirements/stores.txt: clients and throwaway servers of the stores
# that a door is tested over. Without one its tests are skipped.
install_stores() {
    names=$(echo "$@" | tr ' ' '|')
    grep -E "^($names)==" "$REPOSITORY/requirements/stores.txt" > "$TARGET/stores.txt" || true
    install -r "$TARGET/stores.txt" || echo "no S3 here: its tests will be skipped" >&2
    install "mooncake-transfer-engine-non-cuda>=0.3.13,<0.4" || echo "no Mooncake here: its tests will be skipped" >&2
}

# ready ENGINE MODULE: import what the door stands on, and say the versions.
ready() {
    cd "$TARGET" # or the checkout would be imported in the place of what is installed
    "$PY" -W ignore - "$@" <<'END'
import importlib
import importlib.metadata as metadata
import sys

import hicache_core

engine, module = sys.argv[1:]
importlib.import_module(module)
versions = ((engine, metadata.version(engine)), ("torch", metadata.version("torch")))
print("ready:", *(f"{name} {version}" for name, version in versions), "hicache", hicache_core.__version__)
END
}
