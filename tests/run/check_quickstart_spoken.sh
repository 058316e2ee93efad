#!/usr/bin/env bash
# jobs/quickstart_spoken.sh with the programs of a build folder. Small: a few steps on 480 samples, then a second run,
# which must skip what is done. Whole: as users run it; of the held-out spoken "what is this?" more than 80 % must be
# answered right.
#   check_quickstart_spoken.sh BUILD_FOLDER [whole]
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/../.."

.venv/bin/python -c 'import h5py, matplotlib, tokenizers' 2>/dev/null || {
  echo "skipped: no h5py, matplotlib or tokenizers in .venv"
  exit 77
}
if [ -z "$(command -v espeak-ng)" ] || [ ! -d /usr/share/datasets/fashion-mnist ]; then
  echo "skipped: no espeak-ng or no dataset-fashion-mnist"
  exit 77
fi
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
export BIN=$1 OUT=$out/quickstart

fail() {
  cat "$out/log.txt" >&2
  echo "check_quickstart_spoken: $1" >&2
  exit 1
}
quickstart() { jobs/quickstart_spoken.sh "$@" >"$out/log.txt" 2>&1; }

if [ "${2:-}" = whole ]; then
  quickstart || fail "it failed"
  share=$(sed -n 's/^what is this? spoken: \([0-9.]*\)%.*/\1/p' "$out/log.txt")
  awk -v share="$share" 'BEGIN { exit !(share > 80) }' || fail "spoken \"what is this?\": $share %"
  exit 0
fi

export LIMIT=240
few=(schedule.steps=16 schedule.global_batch=24 optim.warmup_steps=4 log.every=1 eval.every=0 eval.samples=0)
quickstart "${few[@]}" || fail "the first run failed"
for file in train.h5 test.h5 tokenizer.json weights.h5 trained.h5 run/log.txt eval/predictions.jsonl metrics.png \
  spoken_sheet.png; do
  [ -s "$OUT/$file" ] || fail "$file is missing"
done
for kind in "what is this? spoken" "what is this? typed" "is this a shoe? spoken" "is it dark or light? typed"; do
  grep -q "^$kind: [0-9.]*% of [0-9]*$" "$out/log.txt" || fail "no accuracy of \"$kind\""
done
.venv/bin/python - "$OUT" <<'END' || fail "the model did not learn, or the data are not what they should be"
import json, sys
import h5py
out = sys.argv[1]
losses = [json.loads(line)["loss"] for line in open(out + "/run/metrics.jsonl") if '"kind":"train"' in line]
assert losses[-1] < 0.7 * losses[0], losses
predictions = [json.loads(line) for line in open(out + "/eval/predictions.jsonl")]
assert len(predictions) == 240
assert {"yes", "no", "dark", "light", "nothing", "bag"} <= {line["label"] for line in predictions}
with h5py.File(out + "/train.h5") as file:
    modality, offsets = file["item_modality"][...], file["sample_item_offsets"][...]
    kinds = {tuple(modality[a:b]) for a, b in zip(offsets[:-1], offsets[1:])}
    assert kinds == {(), (0,), (1,), (0, 1)}, kinds
END

times() { stat -c %Y.%y "$OUT"/{train.h5,test.h5,weights.h5,run/metrics.jsonl,trained.h5,eval/predictions.jsonl}; }
before=$(times)
quickstart "${few[@]}" || fail "the second run failed"
[ "$before" = "$(times)" ] || fail "the second run did again what was done"
