#!/usr/bin/env bash
# Measures links, overlap and exposed communication on the 2 to 8 GPUs of a node, in at most 20 minutes, and says which
# of the plan's predictions for an 8B's layers under FSDP, tp, cp, pp was off by more than 15 %; see several/report.md:
#   tests/gpu/several.sh [--tree FOLDER] [--out FOLDER] [--parts NAME...] [--minutes N]
# Trees and PYTHON are those of first_run.sh. The parts for axes need the hardware file that the part links writes.
# --device cpu --quick tests the script itself without a GPU; --help says more.
set -euo pipefail
here=$(cd -P "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec "${PYTHON:-python3}" -B "$here/several" "$@"
