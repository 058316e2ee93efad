#!/usr/bin/env bash
# Sets up, builds and runs all tests but those labelled long; CTest's summary comes last. Arguments go to ctest:
#   tests/run.sh -L unit
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."

jobs/setup.sh --tests --dataset --slurm
jobs/build.sh ci
export ZEA_REQUIRE_REFERENCES=1  # what is compared with another program must be, not skipped
cores=$(env -u OMP_NUM_THREADS nproc)
# Twice the cores: many tests wait, for ranks that hang on purpose or for mpirun to see that some have ended.
exec .venv/bin/ctest --preset ci -j $((2 * cores)) "$@"
