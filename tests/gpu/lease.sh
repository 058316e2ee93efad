#!/usr/bin/env bash
# Measures on one GPU, in at most 10 minutes, what decides about zea's next work: ten measurements, each with a limit, a
# line of result as soon as it ends and what it decides, then the speed of whole steps; all of it in lease/report.md:
#   tests/gpu/lease.sh [--tree FOLDER] [--out FOLDER] [--parts NAME...] [--minutes N]
# Trees and PYTHON are those of first_run.sh; PYTHON needs NumPy, h5py and PyTorch for CUDA.
# --device cpu --quick tries the script itself where there is no GPU; --help says more.
set -euo pipefail
here=$(cd -P "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec "${PYTHON:-python3}" -B "$here/lease" "$@"
