#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Whether clang-tidy has nothing to say of the folders below, those without libtorch and watch/. A folder is checked at
# once, as it is compiled. Skipped where there is no clang-tidy 14: `jobs/setup.sh --tests` brings it.
#   check_tidy.sh FOLDER_OF_OTHERS_HEADERS...
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/../.."

. tests/style/clang_tool.sh
tidy=$(clang_tool clang-tidy)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp .clang-tidy "$folder"
for part in src/{core,deck,spec,layout,schedule,estimate,files,h5,io,data,library,comm,comm/mpi,comm/node,watch}; do
  find "$PWD/$part" -maxdepth 1 -name '*.cpp' ! -name log.cpp -printf '#include "%p"\n' |
    sort >"$folder/${part//\//_}.cpp"
done
# The wheel lacks the headers that belong to the compiler. GCC's serve as well, but for those of vector instructions.
others="$(printf -- '-isystem %s ' "$@") -idirafter $(gcc -print-file-name=include) -U__SSE2__"
# The number of suppressed warnings, of which it tells, is no fault.
check() {
  # shellcheck disable=SC2086 # words
  "$tidy" --quiet "$1" -- -std=c++20 -I"$PWD/include" -I"$PWD/src" $others \
    2>"$1.said" || { cat "$1.said"; exit 1; }
}
export tidy others
export -f check
find "$folder" -name '*.cpp' -print0 | xargs -0 -n 1 -P 2 bash -c 'check "$1"' -
