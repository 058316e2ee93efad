#!/usr/bin/env bash
# Steps that the quickstarts share; a step is skipped if its result exists. To be sourced from a script in jobs/, with a deck of
# inputs/, whose weights are initialized by the config of the same name. Sets ranks, out, bin, python and deck; RANKS, OUT, PRESET and
# BIN may be set.
#   source jobs/quickstart_steps.sh DECK DEFAULT_OUT
ranks=${RANKS:-2}
out=${OUT:-$2}
preset=${PRESET:-release}
bin=${BIN:-build/$preset}
deck=inputs/$1
# shellcheck disable=SC2034 # it is for the scripts
python=.venv/bin/python

# Ranks share the cores: one thread each, which does not spin while it waits.
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive

say() { printf '\n== %s\n' "$1"; }

# make_once FILE COMMAND...: the command writes that file last of all.
make_once() {
  if [ -s "$1" ]; then
    echo "$1 is there"
  else
    "${@:2}"
  fi
}

# set_up OPTIONS...: of jobs/setup.sh.
set_up() {
  if [ -z "${BIN:-}" ]; then
    say "set-up and build"
    jobs/setup.sh "$@"
    jobs/build.sh "$preset" zea zea_import zea_consolidate zea_inspect
  fi
  mkdir -p "$out"
}

# draw_weights CONFIG: of inputs/.
draw_weights() {
  say "initial weights"
  make_once "$out/weights.h5" "$bin/postprocess/zea-import" --random "inputs/$1" "$out/weights.h5" --seed 1
}

# zea_run ARGUMENTS...: the deck's files lie in the output folder.
zea_run() {
  local run=(mpirun --oversubscribe --bind-to none -n "$ranks")
  if [ "$(id -u)" -eq 0 ]; then run+=(--allow-run-as-root); fi
  "${run[@]}" "$bin/src/zea" data.train="$out/train.h5" data.eval="$out/test.h5" "$@"
}

has_checkpoint() { compgen -G "$out/run/checkpoints/step-*/manifest.json" >/dev/null; }

# train FILE OVERRIDES...: from the last checkpoint on, or from WEIGHTS, by default the drawn ones; FILE is what is made of the result.
train() {
  say "training on $ranks ranks"
  local restart=()
  if has_checkpoint; then restart=(-r "$out/run"); fi
  if [ -s "$1" ]; then
    echo "$1 is there; remove $out/run and $1 to train again"
  else
    rm -rf "$out/eval" "$out/after" "$out/trained_hf" # which scripts make of it
    zea_run "${restart[@]}" -i "$deck" -d "$out/run" model.weights="${WEIGHTS:-$out/weights.h5}" "${@:2}"
  fi
}

# evaluate OVERRIDES...: trained.h5 on the held-out samples, all of which are answered.
evaluate() {
  make_once "$out/eval/predictions.jsonl" \
    zea_run -i "$deck" -d "$out/eval" model.weights="$out/trained.h5" run.mode=evaluate eval.samples=0 "$@"
}
