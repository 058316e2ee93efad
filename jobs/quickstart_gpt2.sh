#!/usr/bin/env bash
# A small GPT-2 on plain text: packs Debian's copy of the Jargon File (public domain), initializes weights, trains on two ranks in bf16,
# fully sharded, and exports for transformers, all in quickstart_gpt2/. A second run skips finished steps.
#   jobs/quickstart_gpt2.sh [section.key=value ...]      # overrides of inputs/gpt2_2m_jargon.toml
# RANKS=2, OUT=quickstart_gpt2, TEXT= (a text file or a folder) and BIN= (a build folder whose programs are used without set-up and
# build) may be set.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
source jobs/quickstart_steps.sh gpt2_2m_jargon.toml quickstart_gpt2

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

pack() {
  local text=${TEXT:-$out/source/usr/share/doc/jargon-text/jargon.txt.gz}
  if [ -z "${TEXT:-}" ] && [ ! -s "$text" ]; then fetch_text; fi
  "$python" jobs/pack_text.py "$text" --out "$out" --train-bpe 2048 --max-tokens 256
}

export_to_hf() {
  rm -rf "$out/trained_hf" # incomplete, if it is there
  "$bin/postprocess/zea-consolidate" "$out/run" "$out/trained_hf/"
  cp "$out/tokenizer.json" "$out/tokenizer_config.json" "$out/trained_hf/"
}

set_up

say "data"
make_once "$out/tokenizer_config.json" pack

draw_weights gpt2_2m.json
train "$out/trained_hf/tokenizer_config.json" "$@"
make_once "$out/trained_hf/tokenizer_config.json" export_to_hf

say "done"
grep '"kind":"eval"' "$out/run/metrics.jsonl" | tail -n 1
echo "$out/trained_hf loads with transformers' AutoModelForCausalLM and AutoTokenizer"
