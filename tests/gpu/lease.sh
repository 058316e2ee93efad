#!/usr/bin/env bash
# Makes ten measurements on one GPU in at most 10 minutes, on which decisions about zea's next work depend, then
# measures the speed of whole steps. Each measurement has a time limit and prints its result in one line as soon as it
# ends. lease/report.md has all results:
#   tests/gpu/lease.sh [--tree FOLDER] [--out FOLDER] [--parts NAME...] [--minutes N]
# Trees and PYTHON are those of first_run.sh; PYTHON needs NumPy, h5py and PyTorch for CUDA.
# --device cpu --quick tests the script itself without a GPU; --help says more.
set -euo pipefail
here=$(cd -P "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec "${PYTHON:-python3}" -B "$here/lease" "$@"
