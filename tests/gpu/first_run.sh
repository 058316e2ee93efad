#!/usr/bin/env bash
# All that a machine with a GPU can tell about zea, in one command and at most 25 minutes; what it found stands in
# first_run/report.md:
#   tests/gpu/first_run.sh [--tree FOLDER] [--out FOLDER] [--parts NAME...] [--minutes N]
# FOLDER of --tree is a build folder with tests (build/ci), or a tree that `jobs/bundle.sh --tests` packed, in which
# this script lies, too. PYTHON names a Python with NumPy and h5py, which make the data, and with PyTorch and
# transformers, which zea is measured beside; without them less is found out.
# --device cpu tries the script itself where there is no GPU; --help says more.
set -euo pipefail
here=$(cd -P "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec "${PYTHON:-python3}" -B "$here/first_run" "$@"
