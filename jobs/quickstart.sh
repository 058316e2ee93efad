#!/usr/bin/env bash
# From a bare checkout to a trained multimodal model: sets up, builds, packs Fashion-MNIST with questions and captions, draws initial
# weights, trains on two ranks, consolidates, evaluates on the held-out images, and draws what came out. A second run skips what is
# done. Everything lands in quickstart/.
#   jobs/quickstart.sh [section.key=value ...]      # overrides of inputs/fashion_captions_2m.toml, e.g. precision.preset=bf16
# RANKS=2, OUT=quickstart and LIMIT= (images to pack; all by default) may be set.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."

ranks=${RANKS:-2}
out=${OUT:-quickstart}
preset=${PRESET:-release}
deck=inputs/fashion_captions_2m.toml
bin=build/$preset
run=(mpirun --oversubscribe --bind-to none -n "$ranks")
if [ "$(id -u)" -eq 0 ]; then run+=(--allow-run-as-root); fi

say() { printf '\n== %s\n' "$1"; }

say "set-up and build"
jobs/setup.sh --dataset
jobs/build.sh "$preset" zea zea_import zea_consolidate zea_inspect
python=.venv/bin/python
mkdir -p "$out"

# Ranks share the cores: one thread each, which does not spin while it waits.
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive

say "data: Fashion-MNIST with questions and captions"
if [ -s "$out/train.h5" ] && [ -s "$out/test.h5" ]; then
  echo "$out/train.h5 and $out/test.h5 are there"
else
  "$python" jobs/pack_fashion_mnist.py --out "$out" --image-tokens 16 ${LIMIT:+--limit "$LIMIT"}
fi

say "initial weights"
if [ -s "$out/weights.h5" ]; then
  echo "$out/weights.h5 is there"
else
  "$bin/postprocess/zea-import" --random inputs/fashion_captions_2m.json "$out/weights.h5" --seed 1
fi

# zea_run ARGUMENTS...: the deck's files lie in the output folder.
zea_run() {
  "${run[@]}" "$bin/src/zea" data.train="$out/train.h5" data.eval="$out/test.h5" "$@"
}

say "training on $ranks ranks"
restart=()
if compgen -G "$out/run/checkpoints/step-*/manifest.json" >/dev/null; then restart=(-r "$out/run"); fi
if [ -s "$out/trained.h5" ]; then
  echo "$out/trained.h5 is there; remove $out/run and $out/trained.h5 to train again"
else
  zea_run "${restart[@]}" -i "$deck" -d "$out/run" model.weights="$out/weights.h5" "$@"
fi

say "consolidate and inspect the last checkpoint"
if [ ! -s "$out/trained.h5" ]; then
  "$bin/postprocess/zea-consolidate" "$out/run" "$out/trained.h5"
  "$bin/postprocess/zea-consolidate" "$out/trained.h5" "$out/trained_hf/"
fi
"$bin/postprocess/zea-inspect" "$out/run"

say "evaluation on the held-out images"
if [ -s "$out/eval/predictions.jsonl" ]; then
  echo "$out/eval is there"
else
  zea_run -i "$deck" -d "$out/eval" model.weights="$out/trained.h5" run.mode=evaluate eval.samples=0 "$@"
fi

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
