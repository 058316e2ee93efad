#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Whether every C++ file is as clang-format leaves it. Skipped where there is no clang-format 14, whose output this is:
# `jobs/setup.sh --tests` brings it.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/../.."

. tests/style/clang_tool.sh
format=$(clang_tool clang-format)
find src include tests postprocess -name '*.[ch]pp' -print0 | xargs -0 "$format" --dry-run -Werror
