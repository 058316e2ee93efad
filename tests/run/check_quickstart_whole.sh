#!/usr/bin/env bash
# The quickstart as users run it: one epoch of 60,000 samples, at least 80 % of the 10,000 held-out images named right.
#   check_quickstart_whole.sh PRESET
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/../.."

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
PRESET=$1 OUT=$out/quickstart jobs/quickstart.sh >"$out/log.txt" 2>&1 || { tail -n 50 "$out/log.txt"; exit 1; }
.venv/bin/python - "$out/quickstart/eval/metrics.jsonl" <<'END'
import json, sys
evaluation = json.loads(open(sys.argv[1]).read().splitlines()[-1])
assert evaluation["labelled"] == 10000 and evaluation["accuracy"] >= 0.8, evaluation
END
