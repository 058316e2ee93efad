#!/usr/bin/env bash
# From a bare checkout to a model that sees and hears: sets up, builds, has espeak-ng speak questions about Fashion-MNIST images in
# many voices, draws initial weights, trains on two ranks, consolidates, evaluates on held-out images and voices, and draws what came
# out. A second run skips what is done. Everything lands in quickstart_spoken/.
#   jobs/quickstart_spoken.sh [section.key=value ...]      # overrides of inputs/spoken_fashion_2m.toml, e.g. precision.preset=bf16
# RANKS=2, OUT=quickstart_spoken, LIMIT= (samples to pack; all by default) and BIN= (a build folder whose programs are used as they
# are, without set-up and build) may be set.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."

ranks=${RANKS:-2}
out=${OUT:-quickstart_spoken}
preset=${PRESET:-release}
bin=${BIN:-build/$preset}
deck=inputs/spoken_fashion_2m.toml
run=(mpirun --oversubscribe --bind-to none -n "$ranks")
if [ "$(id -u)" -eq 0 ]; then run+=(--allow-run-as-root); fi

say() { printf '\n== %s\n' "$1"; }

if [ -z "${BIN:-}" ]; then
  say "set-up and build"
  jobs/setup.sh --dataset
  jobs/build.sh "$preset" zea zea_import zea_consolidate zea_inspect
fi
python=.venv/bin/python
mkdir -p "$out"

# Ranks share the cores: one thread each, which does not spin while it waits.
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive

say "data: Fashion-MNIST with spoken and typed questions"
if [ -s "$out/train.h5" ] && [ -s "$out/test.h5" ]; then
  echo "$out/train.h5 and $out/test.h5 are there"
else
  "$python" jobs/pack_spoken.py --out "$out" ${LIMIT:+--limit "$LIMIT"}
fi

say "initial weights"
if [ -s "$out/weights.h5" ]; then
  echo "$out/weights.h5 is there"
else
  "$bin/postprocess/zea-import" --random inputs/spoken_fashion_2m.json "$out/weights.h5" --seed 1
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
  "$bin/postprocess/zea-consolidate" "$out/run" "$out/trained.h5"
fi

say "evaluation on held-out images and voices"
if [ -s "$out/eval/predictions.jsonl" ]; then
  echo "$out/eval is there"
else
  zea_run -i "$deck" -d "$out/eval" model.weights="$out/trained.h5" run.mode=evaluate eval.samples=0 "$@"
fi

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
