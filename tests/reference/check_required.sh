#!/usr/bin/env bash
# check_required.sh REQUIRED: exit codes under required.sh.
set -u
code_of() { "$@" >/dev/null 2>&1; echo $?; }
failed=0
expect() {
  [ "$1" = "$2" ] || { echo "exit code $2, not $1: ${*:3}"; failed=1; }
}
for code in 0 1 77 75; do
  expect "$code" "$(code_of env -u ZEA_REQUIRE_REFERENCES bash "$1" bash -c "exit $code")" "not required"
done
for code in 0 1 75; do
  expect "$code" "$(code_of env ZEA_REQUIRE_REFERENCES=1 bash "$1" bash -c "exit $code")" required
done
expect 1 "$(code_of env ZEA_REQUIRE_REFERENCES=1 bash "$1" bash -c "exit 77")" required
exit "$failed"
