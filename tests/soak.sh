#!/usr/bin/env bash
# Trains for HOURS under random faults, one at a time: half of the time on this machine (tests/run/check_soak.py), half
# as Slurm jobs over two nodes, which are network namespaces (tests/network/check_soak_nodes.py; as root, with Slurm):
#   tests/soak.sh 2
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."

[[ ${1:-} =~ ^[0-9]+(\.[0-9]+)?$ ]] || { echo "usage: tests/soak.sh HOURS" >&2; exit 2; }
jobs/setup.sh --tests
jobs/build.sh ci zea zea_import zea_consolidate faulty_calls
export OMP_NUM_THREADS=1 OMPI_MCA_mpi_yield_when_idle=1 ZEA_FAULTY_CALLS=$PWD/build/ci/tests/run/faulty_calls.so
ZEA_SOAK_SECONDS=$(awk "BEGIN { print $1 * 1800 }")
export ZEA_SOAK_SECONDS
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1  # for jobs of Slurm
code=0
programs=("$PWD"/build/ci/{src/zea,postprocess/zea-import,postprocess/zea-consolidate})
launcher=(mpirun --allow-run-as-root --oversubscribe --bind-to none --mca btl_base_warn_component_unused 0)
for soak in run/check_soak.py network/check_soak_nodes.py; do
  .venv/bin/python -B "tests/$soak" "${programs[@]}" "$PWD/jobs" "${launcher[@]}" || code=$?
done
exit "$code"
