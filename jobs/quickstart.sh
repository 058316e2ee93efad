#!/usr/bin/env bash
# From a bare checkout to a trained multimodal model: sets up, builds, packs Fashion-MNIST with questions and captions, initializes
# weights, trains on two ranks, consolidates, evaluates on held-out images, and plots the results into quickstart/. A second run skips
# finished steps.
#   jobs/quickstart.sh [section.key=value ...]      # overrides of inputs/fashion_captions_2m.toml, e.g. precision.preset=bf16
# RANKS=2, OUT=quickstart, LIMIT= (images to pack; default: all) and BIN= (a build folder whose programs are used without set-up and
# build) may be set.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
source jobs/quickstart_steps.sh fashion_captions_2m.toml quickstart

set_up --dataset

say "data: Fashion-MNIST with questions and captions"
make_once "$out/test.h5" "$python" jobs/pack_fashion_mnist.py --out "$out" --image-tokens 16 ${LIMIT:+--limit "$LIMIT"}

draw_weights fashion_captions_2m.json
train "$out/trained.h5" "$@"

say "consolidate and inspect the last checkpoint"
make_once "$out/trained.h5" "$bin/postprocess/zea-consolidate" "$out/run" "$out/trained.h5"
make_once "$out/trained_hf/config.json" "$bin/postprocess/zea-consolidate" "$out/trained.h5" "$out/trained_hf/"
"$bin/postprocess/zea-inspect" "$out/run"

say "evaluation on the held-out images"
evaluate "$@"

say "pictures"
"$python" postprocess/plot_metrics.py "$out/run/metrics.jsonl" --out "$out/metrics.png"
"$python" postprocess/contact_sheet.py "$out/eval/predictions.jsonl" "$out/test.h5" --out "$out/contact_sheet.png"

say "done"
grep '"accuracy"' "$out/eval/metrics.jsonl" | tail -n 1
cat <<END
Everything lies in $out/:
  run/                the run: log.txt, metrics.jsonl, deck.used.toml, checkpoints/
  trained.h5          the consolidated weights; trained_hf/ the same for transformers' from_pretrained
  eval/               predictions.jsonl: what it generated for each held-out image; metrics.jsonl: its accuracy
  metrics.png         loss and accuracy over time
  contact_sheet.png   held-out images with their generated captions
END
