#!/usr/bin/env bash
# Checks everything about zea that a machine with a GPU can show, in one command and at most 25 minutes; the results are
# in first_run/report.md:
#   tests/gpu/first_run.sh [--tree FOLDER] [--out FOLDER] [--parts NAME...] [--minutes N]
# FOLDER of --tree is a build folder with tests (build/ci), or a tree that `jobs/bundle.sh --tests` packed, in which
# this script lies, too. PYTHON names a Python with NumPy and h5py, which make the data, and with PyTorch and
# transformers, which zea is compared with; without them the report has less.
# --device cpu tries the script itself where there is no GPU; --help says more.
set -euo pipefail
here=$(cd -P "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec "${PYTHON:-python3}" -B "$here/first_run" "$@"
