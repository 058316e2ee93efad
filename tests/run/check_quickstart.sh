#!/usr/bin/env bash
# The whole quickstart, small: 60 steps on 3,840 pictures, 64 held-out ones decoded; then once more, which must skip
# what is done; and adapters for another task on its model.
#   check_quickstart.sh PRESET
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/../.."

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
quickstart() {
  PRESET=$1 OUT=$out/quickstart LIMIT=3840 jobs/quickstart.sh schedule.steps=60 optim.warmup_steps=10 \
    eval.every=30 eval.samples=64 checkpoint.every=40
}
fail() {
  echo "check_quickstart: $1" >&2
  exit 1
}

quickstart "$1" >"$out/first.txt" 2>&1 || { cat "$out/first.txt"; fail "the first run failed"; }
for file in train.h5 test.h5 weights.h5 trained.h5 trained_hf/config.json trained_hf/model.safetensors \
  metrics.png contact_sheet.png run/deck.used.toml run/log.txt \
  run/checkpoints/step-00000060/manifest.json eval/predictions.jsonl; do
  [ -s "$out/quickstart/$file" ] || fail "$file is missing"
done
[ "$(grep -c '"kind":"train"' "$out/quickstart/run/metrics.jsonl")" -eq 6 ] || fail "metrics.jsonl lacks steps"
.venv/bin/python - "$out/quickstart" <<'END'
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1] + "/run/metrics.jsonl")]
losses = [line["loss"] for line in lines if line["kind"] == "train"]
assert losses[-1] < 0.5 * losses[0], losses
evaluation = json.loads(open(sys.argv[1] + "/eval/metrics.jsonl").read().splitlines()[-1])
assert evaluation["labelled"] == evaluation["samples"] == 64, evaluation
assert evaluation["accuracy"] > 0.25, evaluation  # ten classes: chance is 0.1
END

before=$(stat -c %Y "$out/quickstart/trained.h5" "$out/quickstart/train.h5" "$out/quickstart/eval/predictions.jsonl")
quickstart "$1" >"$out/second.txt" 2>&1 || { cat "$out/second.txt"; fail "the second run failed"; }
after=$(stat -c %Y "$out/quickstart/trained.h5" "$out/quickstart/train.h5" "$out/quickstart/eval/predictions.jsonl")
[ "$before" = "$after" ] || fail "the second run did again what was done"

lora() {
  OUT=$out/lora BASE=$out/quickstart BIN=build/$1 LIMIT=1280 jobs/quickstart_lora.sh schedule.steps=20 \
    checkpoint.every=10 eval.every=100
}
lora "$1" >"$out/lora.txt" 2>&1 || { cat "$out/lora.txt"; fail "the adapters failed"; }
for file in adapter/adapter_model.safetensors adapter/adapter_config.json merged/model.safetensors \
  before_and_after.png before/predictions.jsonl after/predictions.jsonl; do
  [ -s "$out/lora/$file" ] || fail "$file is missing"
done
.venv/bin/python - "$out/lora" <<'END'
import json, sys
def told(when):
    return json.loads(open(f"{sys.argv[1]}/{when}/metrics.jsonl").read().splitlines()[-1])
before, after = told("before"), told("after")
assert after["loss"] < 0.8 * before["loss"], (before, after)
saves = [json.loads(line) for line in open(sys.argv[1] + "/run/metrics.jsonl")]
saves = [line for line in saves if line["kind"] == "checkpoint"]
first, last = saves[0], saves[-1]
assert last["linked_bytes"] + last["bytes"] == first["bytes"], saves
assert last["bytes"] < 0.1 * first["bytes"], saves  # adapters and moments alone
END
