#!/usr/bin/env bash
# Builds zea for aarch64 and runs its unit tests, tests of collectives and layouts, and the golden runs (trainings of
# 1 and 2 ranks) under emulation:
#   tests/aarch64/run.sh FOLDER
# FOLDER gets Debian's packages and PyPI's wheels for that processor, and the build (4 GB in all). It runs as root and
# needs Debian's g++-aarch64-linux-gnu, mmdebstrap and qemu-user-static; without them it exits with 77.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/../.."

[ $# -eq 1 ] || { echo "usage: tests/aarch64/run.sh FOLDER" >&2; exit 2; }
for program in aarch64-linux-gnu-g++ mmdebstrap qemu-aarch64-static; do
  command -v "$program" >/dev/null || { echo "skipped: there is no $program"; exit 77; }
done
[ "$(id -u)" -eq 0 ] || { echo "skipped: only root can unpack a system"; exit 77; }
mkdir -p "$1"
folder=$(cd "$1" && pwd)
build=$folder/build

if [ ! -d "$folder/root" ]; then
  eval "$(sed -n '/^packages=(/,/)$/p' jobs/setup.sh)"
  needed=$(printf '%s\n' "${packages[@]}" | grep -e '-dev$' | grep -v kokkos | tr '\n' ,)libc6-dev,libstdc++-12-dev
  rm -rf "$folder/unpacked"
  mmdebstrap --quiet --arch=arm64 --variant=extract --include="$needed" bookworm "$folder/unpacked"
  mv "$folder/unpacked" "$folder/root"
fi
if [ ! -d "$folder/wheels" ]; then
  platforms=(--platform manylinux2014_aarch64)
  for minor in {17..34}; do platforms+=(--platform "manylinux_2_${minor}_aarch64"); done
  rm -rf "$folder/unpacked"
  .venv/bin/pip install --quiet --target "$folder/unpacked" --no-deps --only-binary=:all: --python-version 3.11 \
    "${platforms[@]}" -r <(grep -E '^(torch|nvidia-cuda-(runtime|cupti))=' jobs/requirements.txt)
  mv "$folder/unpacked" "$folder/wheels"
fi

printf '#!/bin/sh\nexec qemu-aarch64-static -L %s -E LD_LIBRARY_PATH=%s "$@"\n' "$folder/root" \
  "$folder/wheels/torch/lib:$(echo "$folder"/wheels/nvidia/*/lib)" >"$folder/emulate"
chmod +x "$folder/emulate"
cmake=.venv/bin/cmake python=$PWD/.venv/bin/python3
$cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DZEA_AARCH64="$folder" -DZEA_ENABLE_NCCL=OFF \
  -DCMAKE_TOOLCHAIN_FILE="$PWD/tests/aarch64/toolchain.cmake" -DCMAKE_MAKE_PROGRAM="$(command -v ninja)" \
  -DPython3_EXECUTABLE="$python" -DZEA_PYTHON="$python" -DGIT_EXECUTABLE="$(command -v git)" \
  -DMPIEXEC_EXECUTABLE="$(command -v mpirun)"
$cmake --build "$build" --target zea zea_import zea_consolidate mpi_comm mpi_engine \
  unit_{core,deck,spec,layout,schedule,estimate,io,data,comm,kernels,stream_handle,model,train}

# mpirun is this machine's; processors of two kinds would not agree on how shared memory is laid out.
export PMIX_MCA_gds=hash OMPI_MCA_btl_vader_single_copy_mechanism=none
# libtorch's bf16 products are less exact on such processors than test_row_kernels allows.
.venv/bin/ctest --test-dir "$build" --output-on-failure -L '^unit$' -LE 'long|fuzz' -E '^test_row_kernels$'
"$folder/emulate" "$build/tests/unit/unit_kernels" --file=test_row_kernels '--gtest_filter=-*Products*BFloat16'
.venv/bin/ctest --test-dir "$build" --output-on-failure -R '^test_(collectives|layouts)_ranks[34]$'
for name in zea zea-import zea-consolidate; do
  program=$(find "$build/src" "$build/postprocess" -name $name -type f)
  printf '#!/bin/sh\nexec %s %s "$@"\n' "$folder/emulate" "$program" >"$folder/$name"
  chmod +x "$folder/$name"
done
exec .venv/bin/python3 -B tests/run/check_golden.py "$folder"/{zea,zea-import,zea-consolidate} jobs \
  mpirun --allow-run-as-root --oversubscribe --bind-to none --mca btl_base_warn_component_unused 0
