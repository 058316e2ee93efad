#!/usr/bin/env bash
# The preset fuzz, built and run; exit code 77 (Skipped) where clang or its libFuzzer is missing.
#   run_preset.sh CMAKE CTEST SOURCE
set -euo pipefail
cmake=$1 ctest=$2
cd "$3"
library=$(clang++ -print-file-name=libclang_rt.fuzzer-x86_64.a 2>/dev/null || true)
[ -e "$library" ] || library=$(clang++ --print-resource-dir 2>/dev/null)/lib/linux/libclang_rt.fuzzer-$(uname -m).a
if [ ! -e "$library" ]; then
  echo "no clang with libFuzzer here"
  exit 77
fi
"$cmake" --preset fuzz
"$cmake" --build --preset fuzz
exec "$ctest" --preset fuzz
