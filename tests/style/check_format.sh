#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Whether every C++ file is as clang-format leaves it. Skipped where there is no clang-format 14, whose output this is.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/../.."

format=$(command -v clang-format-14 || command -v clang-format || true)
if [ -z "$format" ] || ! "$format" --version | grep -q 'version 14\.'; then
  echo "no clang-format 14"
  exit 77
fi
find src include tests postprocess -name '*.[ch]pp' -print0 | xargs -0 "$format" --dry-run -Werror
