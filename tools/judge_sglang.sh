#!/bin/sh
# usage: tools/judge_sglang.sh MODULE:CLASS [REPORT.json] [hicache conformance option]...
# Judges a storage class of SGLang. Sets up a real SGLang in .peers/sglang first (see tools/peers/sglang.sh), once;
# SGLANG_VERSION and SGLANG_PEER choose another version and directory. A class of your own is found by PYTHONPATH.
# Exit codes: 0 nothing found, 1 findings, 2 bad input, 3 the class cannot be constructed.
set -eu
[ -n "${1:-}" ] || { sed -n '2,5s/^# //p' "$0" >&2; exit 2; }
REPOSITORY=$(cd "$(dirname "$0")/.." && pwd)
CLASS=$1
JSON=${2:-}
[ $# -lt 2 ] && shift || shift 2
VERSION=${SGLANG_VERSION:-0.5.23}
TARGET=${SGLANG_PEER:-$REPOSITORY/.peers/sglang}
ENVIRONMENT=$TARGET/env.sh
[ "$VERSION" = 0.5.23 ] || ENVIRONMENT=$TARGET/$VERSION/env.sh
if ! { [ -f "$ENVIRONMENT" ] && grep -q PEER_PY "$ENVIRONMENT"; }; then
    "$REPOSITORY/tools/peers/sglang.sh" "$VERSION" "$TARGET" >&2
fi
. "$ENVIRONMENT"
exec "$PEER_PY" -W ignore -m hicache_core conformance --sglang-class "$CLASS" ${JSON:+--json "$JSON"} "$@"
