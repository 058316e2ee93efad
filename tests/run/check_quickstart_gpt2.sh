#!/usr/bin/env bash
# jobs/quickstart_gpt2.sh with the programs of a build folder. Small: a few steps on the text of this project's headers,
# then a second run, which must skip what is done, and one that goes on where the first was cut off. Whole: as users run
# it, with Debian's text.
#   check_quickstart_gpt2.sh BUILD_FOLDER [whole]
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/../.."

python=.venv/bin/python
"$python" -c 'import h5py, tokenizers, transformers' 2>/dev/null || {
  echo "skipped: no transformers in .venv"
  exit 77
}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
export BIN=$1 OUT=$out/quickstart

fail() {
  cat "$out/log.txt" >&2
  echo "check_quickstart_gpt2: $1" >&2
  exit 1
}
quickstart() { jobs/quickstart_gpt2.sh "$@" >"$out/log.txt" 2>&1; }

# check_result CONDITION: of the first and the last training loss, and the last held-out one. The model must load in
# transformers, with the held-out loss that zea found, and its tokenizer must give text back.
check_result() {
  "$python" - "$OUT" "$1" <<'END' || fail "that is not what was to come out"
import json, sys
import h5py, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar
disable_progress_bar()
out, condition = sys.argv[1:]
lines = [json.loads(line) for line in open(out + "/run/metrics.jsonl")]
train = [line["loss"] for line in lines if line["kind"] == "train"]
held_out = [line["loss"] for line in lines if line["kind"] == "eval"][-1]
assert eval(condition, {"first": train[0], "last": train[-1], "held_out": held_out}), (train, held_out)
model = AutoModelForCausalLM.from_pretrained(out + "/trained_hf").eval()
tokenizer = AutoTokenizer.from_pretrained(out + "/trained_hf")
text = "The hacker's  model,\n 7 \u00fc"
assert tokenizer.decode(tokenizer(text).input_ids) == text
assert tokenizer.eos_token_id == 0
total = targets = 0
with h5py.File(out + "/test.h5") as file, torch.no_grad():
    offsets, tokens = file["token_offsets"][...], torch.tensor(file["tokens"][...]).long()
for begin, end in zip(offsets[:-1], offsets[1:]):
    ids = tokens[begin:end][None]
    with torch.no_grad():
        logits = model(ids).logits[0, :-1]
    total += torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum").item()
    targets += end - begin - 1
assert abs(total / targets - held_out) < 0.01 * held_out, (total / targets, held_out)
END
}

if [ "${2:-}" = whole ]; then
  quickstart || {
    grep -q 'cannot download jargon-text' "$out/log.txt" && { echo "skipped: no jargon-text"; exit 77; }
    fail "it failed"
  }
  check_result 'first > 6.5 and last < 4.9 and held_out < 4.9'
  exit 0
fi

head -c 300000 <(cat src/*/*.hpp) >"$out/text.txt"
export TEXT=$out/text.txt
few=(schedule.steps=12 schedule.global_batch=8 optim.warmup_steps=4 log.every=1 eval.every=6)
quickstart "${few[@]}" checkpoint.every=6 || fail "the first run failed"
for file in train.h5 test.h5 weights.h5 run/deck.used.toml run/checkpoints/step-00000012/manifest.json \
  trained_hf/config.json trained_hf/model.safetensors trained_hf/tokenizer.json; do
  [ -s "$OUT/$file" ] || fail "$file is missing"
done
check_result 'last < first - 0.3 and held_out < first - 0.3'

times() { stat -c %Y.%y "$OUT"/{train.h5,test.h5,weights.h5,run/metrics.jsonl,trained_hf/model.safetensors}; }
before=$(times)
quickstart "${few[@]}" || fail "the second run failed"
[ "$before" = "$(times)" ] || fail "the second run did again what was done"

# Cut off while it trained and, later, while it exported: it goes on from the checkpoint.
rm -r "$OUT/run/checkpoints/step-00000012" "$OUT/trained_hf/tokenizer_config.json"
quickstart "${few[@]}" || fail "the third run failed"
grep -q 'resumed .*step-00000006' "$out/log.txt" || fail "the third run did not go on where it was"
[ -s "$OUT/trained_hf/tokenizer_config.json" ] || fail "the third run did not export again"
