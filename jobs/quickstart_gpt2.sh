#!/usr/bin/env bash
# A small GPT-2 on plain text: packs Debian's copy of the Jargon File (public domain), draws initial weights, trains on two ranks in bf16,
# fully sharded, exports for transformers. A second run skips what is done. Everything lands in quickstart_gpt2/.
#   jobs/quickstart_gpt2.sh [section.key=value ...]      # overrides of inputs/gpt2_2m_jargon.toml
# RANKS=2, OUT=quickstart_gpt2, TEXT= (a text file or a folder of your own) and BIN= (a build folder whose programs are used as they
# are, without set-up and build) may be set.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."

ranks=${RANKS:-2}
out=${OUT:-quickstart_gpt2}
preset=${PRESET:-release}
deck=inputs/gpt2_2m_jargon.toml
bin=${BIN:-build/$preset}
run=(mpirun --oversubscribe --bind-to none -n "$ranks")
if [ "$(id -u)" -eq 0 ]; then run+=(--allow-run-as-root); fi
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive

say() { printf '\n== %s\n' "$1"; }

download() { (cd "$out/source" && apt-get download -q jargon-text); }

# The text of the package jargon-text, which need not be installed for that.
fetch_text() {
  mkdir -p "$out/source"
  download || { [ "$(id -u)" -eq 0 ] && apt-get update -q && download; } || {
    echo "apt-get cannot download jargon-text: run apt-get update as root, or set TEXT to a text of your own" >&2
    exit 1
  }
  dpkg-deb -x "$out"/source/jargon-text_*.deb "$out/source"
}

if [ -z "${BIN:-}" ]; then
  say "set-up and build"
  jobs/setup.sh
  jobs/build.sh "$preset" zea zea_import zea_consolidate
fi
mkdir -p "$out"

say "data"
if [ -s "$out/tokenizer_config.json" ]; then # which is written last
  echo "$out/train.h5 and $out/test.h5 are there"
else
  text=${TEXT:-$out/source/usr/share/doc/jargon-text/jargon.txt.gz}
  if [ -z "${TEXT:-}" ] && [ ! -s "$text" ]; then fetch_text; fi
  .venv/bin/python jobs/pack_text.py "$text" --out "$out" --train-bpe 2048 --max-tokens 256
fi

say "initial weights"
if [ -s "$out/weights.h5" ]; then
  echo "$out/weights.h5 is there"
else
  "$bin/postprocess/zea-import" --random inputs/gpt2_2m.json "$out/weights.h5" --seed 1
fi

say "training on $ranks ranks"
restart=()
if compgen -G "$out/run/checkpoints/step-*/manifest.json" >/dev/null; then restart=(-r "$out/run"); fi
if [ -s "$out/trained_hf/tokenizer_config.json" ]; then
  echo "$out/trained_hf is there; remove it and $out/run to train again"
else
  "${run[@]}" "$bin/src/zea" "${restart[@]}" -i "$deck" -d "$out/run" data.train="$out/train.h5" data.eval="$out/test.h5" \
    model.weights="$out/weights.h5" "$@"
  rm -rf "$out/trained_hf" # incomplete, if it is there
  "$bin/postprocess/zea-consolidate" "$out/run" "$out/trained_hf/"
  cp "$out/tokenizer.json" "$out/tokenizer_config.json" "$out/trained_hf/"
fi

say "done"
grep '"kind":"eval"' "$out/run/metrics.jsonl" | tail -n 1
echo "$out/trained_hf loads with transformers' AutoModelForCausalLM and AutoTokenizer"
