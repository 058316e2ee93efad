#!/usr/bin/env bash
# required.sh COMMAND...: runs a test that compares with another program. Where ZEA_REQUIRE_REFERENCES is set, as
# tests/run.sh does, one that is skipped (77) since its reference is missing has failed.
"$@"
code=$?
[ "$code" != 77 ] || [ -z "${ZEA_REQUIRE_REFERENCES:-}" ] || { echo "its reference is missing"; exit 1; }
exit "$code"
