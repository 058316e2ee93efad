#!/usr/bin/env bash
# Fine-tunes the model of jobs/quickstart.sh, which must have run, by LoRA on another task with the same images: which item goes with
# the pictured one. Trains adapters on two ranks, writes them as PEFT's directory and merged into the model, and answers questions on
# held-out images before and after, all in quickstart_lora/. A second run skips finished steps.
#   jobs/quickstart_lora.sh [section.key=value ...]      # overrides of inputs/fashion_matches_lora.toml
# RANKS=2, BASE=quickstart (its folder), OUT=quickstart_lora, LIMIT= (images to pack) and BIN= (a build folder whose programs are used
# without set-up and build) may be set.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
source jobs/quickstart_steps.sh fashion_matches_lora.toml quickstart_lora
base=${BASE:-quickstart}
for file in trained_hf/config.json tokenizer.json; do
  [ -s "$base/$file" ] || {
    echo "quickstart_lora: no $base/$file; run jobs/quickstart.sh first, or set BASE to its folder" >&2
    exit 1
  }
done

set_up --dataset

say "data: the same pictures, another question"
make_once "$out/test.h5" "$python" jobs/pack_fashion_mnist.py --out "$out" --task match --tokenizer "$base/tokenizer.json" \
  --image-tokens 16 ${LIMIT:+--limit "$LIMIT"}

# answers NAME WEIGHTS: what these weights say of 200 held-out pictures.
answers() {
  make_once "$out/$1/predictions.jsonl" zea_run -i inputs/fashion_captions_2m.toml -d "$out/$1" model.weights="$2" \
    run.mode=evaluate eval.samples=200
}

say "what the model says before"
has_checkpoint || rm -rf "$out/before" # the base may be another now
answers before "$base/trained_hf"

WEIGHTS=$base/trained_hf train "$out/merged/model.safetensors" "$@"

say "the adapters, and the model with them"
if [ ! -s "$out/merged/model.safetensors" ]; then
  rm -rf "$out/adapter" "$out/merged" # incomplete, if they are there
  "$bin/postprocess/zea-consolidate" --adapter "$out/run" "$out/adapter/"
  "$bin/postprocess/zea-consolidate" "$out/run" "$out/merged/"
fi

say "what it says after"
answers after "$out/merged"
"$python" postprocess/plot_metrics.py "$out/run/metrics.jsonl" --out "$out/metrics.png"
"$python" postprocess/contact_sheet.py "$out/before/predictions.jsonl" "$out/test.h5" --beside "$out/after/predictions.jsonl" \
  --out "$out/before_and_after.png"

say "done in $SECONDS s"
grep -h '"accuracy"' "$out/before/metrics.jsonl" "$out/after/metrics.jsonl"
cat <<END
Everything lies in $out/:
  run/                   the run: its later checkpoints hold the adapters and their moments, the rest is linked
  adapter/               the adapters as PEFT has them, to be loaded beside $base/trained_hf
  merged/                the model with them, for transformers' from_pretrained
  before/, after/        predictions.jsonl and metrics.jsonl of held-out pictures
  before_and_after.png   what the two say, one above the other
END
