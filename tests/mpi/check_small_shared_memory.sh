#!/usr/bin/env bash
# Runs a command where /dev/shm has so many bytes, as in containers: check_small_shared_memory.sh BYTES COMMAND...
# Needs a mount of its own; Skipped (77) where that is not allowed.
set -euo pipefail
bytes=$1
shift
unshare --mount true 2>/dev/null || exit 77
exec unshare --mount bash -c 'mount -t tmpfs -o size="$0" tmpfs /dev/shm || exit 77; exec "$@"' "$bytes" "$@"
