#!/usr/bin/env bash
# Packs what was built into one archive that another machine unpacks anywhere: jobs/bundle.sh [--tests] [preset [archive]], by default of
# release, into build/<preset>/zea-<version>.tar.gz. It holds zea, its tools, scripts, decks and the libraries that they need, but for libtorch and
# MPI. There ZEA_TORCH_ROOT names libtorch's folder, and MPI is an Open MPI 4 that is loaded or installed:
#   tar xf zea-0.1.0.tar.gz && ZEA_TORCH_ROOT=/opt/torch mpirun -n 4 zea-0.1.0/bin/zea -i deck.toml
# --tests adds those of GPUs (preset ci builds them) and share/zea/tests/gpu/first_run.sh, which runs them all.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."

tests=false
if [ "${1:-}" = --tests ]; then
  tests=true
  shift
fi
preset=${1:-release}
cmake=.venv/bin/cmake
most_mib=50
[ -f "build/$preset/build.ninja" ] || { echo "bundle: nothing is built in build/$preset; run jobs/build.sh $preset first" >&2; exit 1; }
version=$("build/$preset/src/zea" --version | cut -d ' ' -f 2)
archive=${2:-build/$preset/zea-$version.tar.gz}

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$cmake" --install "build/$preset" --prefix "$folder/zea-$version" --strip >/dev/null
if $tests; then
  "$cmake" --install "build/$preset" --component tests --prefix "$folder/zea-$version" --strip >/dev/null
fi
tar -C "$folder" -czf "$archive" "zea-$version"
mib=$((($(stat -c %s "$archive") + 1048575) / 1048576))
[ "$mib" -le "$most_mib" ] || { echo "bundle: $archive has $mib MiB, more than $most_mib" >&2; exit 1; }
printf 'bundle: %s, %d MiB\n' "$archive" "$mib"
