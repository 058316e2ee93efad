#!/usr/bin/env bash
# Packs a build into an archive that can be unpacked anywhere on another machine: jobs/bundle.sh [--tests] [--no-mpi] [preset
# [archive]]; by default preset release, into build/<preset>/zea-<version>.tar.gz. It holds zea, its tools, scripts, decks and the
# libraries that they need, except libtorch, whose folder ZEA_TORCH_ROOT names there; and the build's Open MPI with the launcher
# bin/zea-mpirun, for machines without one. An Open MPI 4 that is loaded or installed there has precedence, with mpirun:
#   tar xf zea-0.1.0.tar.gz && ZEA_TORCH_ROOT=/opt/torch zea-0.1.0/bin/zea-mpirun -n 4 zea-0.1.0/bin/zea -i deck.toml
# --tests adds the GPU tests (which preset ci builds) and share/zea/tests/gpu/first_run.sh, which runs them all, with lease.sh and
# several.sh, which measure; --no-mpi leaves Open MPI out. share/doc/zea/licenses has the licenses of third-party components.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."

tests=false mpi=true
while [[ ${1:-} == --* ]]; do
  case $1 in
  --tests) tests=true ;;
  --no-mpi) mpi=false ;;
  *) echo "bundle: $1 is neither --tests nor --no-mpi" >&2; exit 1 ;;
  esac
  shift
done
preset=${1:-release}
cmake=.venv/bin/cmake
most_mib=50
[ -f "build/$preset/build.ninja" ] || { echo "bundle: nothing is built in build/$preset; run jobs/build.sh $preset first" >&2; exit 1; }
version=$("build/$preset/src/zea" --version | cut -d ' ' -f 2)
archive=${2:-build/$preset/zea-$version.tar.gz}

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
tree=$folder/zea-$version
"$cmake" --install "build/$preset" --prefix "$tree" --strip >/dev/null
if $tests; then
  "$cmake" --install "build/$preset" --component tests --prefix "$tree" --strip >/dev/null
fi
if $mpi; then
  jobs/bundle_mpi.sh "build/$preset/src/zea" "$tree" >"$folder/of_others"
fi
find "$tree" -name '*.so*' -path '*/zea/*' -not -path '*/zea/tests/*' -not -path '*/openmpi/*' >>"$folder/of_others"
jobs/bundle_licenses.sh "$tree" <"$folder/of_others"
tar -C "$folder" -czf "$archive" "zea-$version"
mib=$((($(stat -c %s "$archive") + 1048575) / 1048576))
[ "$mib" -le "$most_mib" ] || { echo "bundle: $archive has $mib MiB, more than $most_mib" >&2; exit 1; }
printf 'bundle: %s, %d MiB\n' "$archive" "$mib"
