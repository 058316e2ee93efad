#!/usr/bin/env bash
# Configures, if needed, and builds zea into build/<preset>: jobs/build.sh [preset [target...]]; by default everything, preset release.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."

preset=${1:-release}
targets=("${@:2}")
# nproc itself heeds OMP_NUM_THREADS, which says nothing of compilers.
jobs=$(env -u OMP_NUM_THREADS nproc)
cmake=.venv/bin/cmake
[ -x "$cmake" ] || { echo "build: no $cmake; run jobs/setup.sh first" >&2; exit 1; }

# quietly COMMAND...: what it said only where it fails.
quietly() {
  local log
  log=$(mktemp)
  if ! "$@" >"$log" 2>&1; then
    grep -E -A 12 'error|FAILED|Error' "$log" | head -n 200 >&2 || tail -n 40 "$log" >&2
    rm -f "$log"
    echo "build: failed: $*" >&2
    exit 1
  fi
  rm -f "$log"
}

begin=$SECONDS
[ -f "build/$preset/build.ninja" ] || quietly "$cmake" --preset "$preset"
quietly "$cmake" --build --preset "$preset" -j "$jobs" ${targets:+--target "${targets[@]}"}
printf 'build: %s, %d s\n' "$preset" $((SECONDS - begin))
