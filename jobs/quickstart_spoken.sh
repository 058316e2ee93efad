#!/usr/bin/env bash
# From a bare checkout to a model with images and audio: sets up, builds, has espeak-ng speak questions about Fashion-MNIST images in
# many voices, initializes weights, trains on two ranks, consolidates, evaluates on held-out images and voices, and plots the results,
# all in quickstart_spoken/. A second run skips finished steps.
#   jobs/quickstart_spoken.sh [section.key=value ...]      # overrides of inputs/spoken_fashion_2m.toml, e.g. precision.preset=bf16
# RANKS=2, OUT=quickstart_spoken, LIMIT= (samples to pack; default: all) and BIN= (a build folder whose programs are used without set-up
# and build) may be set.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
source jobs/quickstart_steps.sh spoken_fashion_2m.toml quickstart_spoken

set_up --dataset

say "data: Fashion-MNIST with spoken and typed questions"
make_once "$out/test.h5" "$python" jobs/pack_spoken.py --out "$out" ${LIMIT:+--limit "$LIMIT"}

draw_weights spoken_fashion_2m.json
train "$out/trained.h5" "$@"
make_once "$out/trained.h5" "$bin/postprocess/zea-consolidate" "$out/run" "$out/trained.h5"

say "evaluation on held-out images and voices"
evaluate "$@"

say "accuracy per kind of question, and pictures"
"$python" postprocess/plot_metrics.py "$out/run/metrics.jsonl" --out "$out/metrics.png"
"$python" postprocess/spoken_sheet.py "$out/eval/predictions.jsonl" "$out/test.h5" --out "$out/spoken_sheet.png"
cat <<END
Everything lies in $out/:
  run/                the run: log.txt, metrics.jsonl, deck.used.toml, checkpoints/
  trained.h5          the consolidated weights
  eval/               predictions.jsonl: what it answered to each held-out question; metrics.jsonl: its accuracy
  metrics.png         loss and accuracy over time
  spoken_sheet.png    held-out images, spectrograms of what was asked, and answers
END
