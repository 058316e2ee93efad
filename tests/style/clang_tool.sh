# SPDX-License-Identifier: Apache-2.0
# clang_tool NAME: the path of this clang tool of version 14: the system's, or else the wheel's in .venv. Without one
# the test is Skipped, but fails where ZEA_REQUIRE_REFERENCES is set, as by tests/run.sh, which installs it. bash reads
# this file in the repository root.
clang_tool() {
  local candidate code=77
  for candidate in "$1-14" "$1" ".venv/bin/$1"; do
    if "$candidate" --version 2>/dev/null | grep -q 'version 14\.'; then
      command -v "$candidate"
      return
    fi
  done
  if [ -n "${ZEA_REQUIRE_REFERENCES:-}" ]; then code=1; fi
  echo "no $1 14: jobs/setup.sh --tests installs it" >&2
  return $code
}
