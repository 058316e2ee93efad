#!/usr/bin/env bash
# Fine-tunes a model of a Hugging Face directory on conversations about images, audio and videos: packs the data, prints the plan,
# trains, and writes a directory that transformers loads. Finished steps are skipped, and an interrupted run continues.
#   jobs/finetune.sh MODEL DATA.json [section.key=value ...]      # overrides of the deck, e.g. optim.lr=1e-5 mesh.llm.tp=2
# MODEL: a Hugging Face directory (LLaVA-1.5, -NeXT, -OneVision, Pixtral, Mistral 3, Qwen2-VL to Qwen3.5, InternVL, SmolVLM, Gemma 3,
# Gemma 4, GLM-4.1V to GLM-4.6V, Kimi-K2.5, Qwen2-Audio, Qwen2.5-Omni, Qwen3-Omni, Voxtral, or a language model, for
# text only). VISION= and AUDIO= name directories of encoders (CLIP, SigLIP and others; Whisper) to compose with MODEL, which is then a language model; PROJECTOR=mlp
# chooses the projector of images (zea -h model.vision.projector).
# DATA.json: conversations in LLaVA's or OpenAI's format, or another source of jobs/pack.py, also a folder. Paths of images, audio clips
# and folders of video frames are relative to the folder of DATA.json, to that folder itself, or to IMAGES=.
# Variables: RANKS=1, OUT=finetuned, BIN=build/release (a build folder), EPOCHS=1 (schedule.steps=N overrides it),
# HELD_OUT=0.02 (fraction of the entries that is evaluated, not trained on; 0: none), ROW_TOKENS=2048, MAX_PIXELS= (of a resized image;
# 0: the family's), MAX_TILES= (of an image), VIDEO_MAX_PIXELS= (of a frame; from Qwen3-VL on of a whole video), MAX_FRAMES= (of a
# video; 0: MODEL's), FPS=2 (frames per second of videos whose entries have no "fps"), AUDIO_IN_VIDEO=1 (Qwen-Omni: an <audio> after a
# <video> is its audio track), PROCESSES= (for packing; default: all cores, 2 with PLAN_ONLY) and
# MPIRUN='mpirun --oversubscribe --bind-to none' (as root, add --allow-run-as-root for Open MPI).
# PLAN_ONLY=1 ends after the plan; the same command without it trains.
set -euo pipefail
if [ $# -lt 2 ] || [[ $1 == -* ]]; then
  sed -n 's/^# \{0,1\}//p' "$0" | sed -n '2,17p' >&2
  exit 2
fi

fail() {
  printf 'finetune: %s\n' "$1" >&2
  exit 2
}

say() { printf '\n== %s\n' "$1"; }

# toml TEXT: as a string of TOML and of JSON.
toml() {
  local text=${1//\\/\\\\}
  text=${text//\"/\\\"}
  text=${text//$'\n'/\\n}
  printf '"%s"' "${text//$'\t'/\\t}"
}

# directory_of NAME: a model's directory as an absolute path. Anything else ends the script before anything is built.
directory_of() {
  if [ ! -f "$1/config.json" ]; then
    local remedy=''
    if [ ! -e "$1" ] && [[ $1 =~ ^[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+$ ]]; then
      remedy="; download it: huggingface-cli download $1 --local-dir ${1##*/}, and name ${1##*/}"
    fi
    fail "$1 is no Hugging Face directory: it has no config.json$remedy"
  fi
  realpath "$1"
}

# has_part CONFIG.json NAME: whether a model has an encoder.
has_part() { grep -q "\"$2\"[[:space:]]*:" "$1/config.json"; }

model=$(directory_of "$1")
[ -e "$2" ] || fail "$2: there is no such file or folder of data"
data=$(realpath "$2")
shift 2
out=$(realpath -m "${OUT:-finetuned}")
folder=$data
[ -d "$data" ] || folder=$(dirname "$data")
[ -d "${IMAGES:-$folder}" ] || fail "IMAGES=$IMAGES: there is no such folder"
images=$(realpath "${IMAGES:-$folder}")
vision=${VISION:+$(directory_of "$VISION")}
audio=${AUDIO:+$(directory_of "$AUDIO")}
[[ $model$data$out$images$vision$audio != *[$'\001'-$'\010\013'-$'\037\177']* ]] || fail "a path holds control characters; rename it"
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
bin=${BIN:-build/release}
ranks=${RANKS:-1}
# nproc itself heeds OMP_NUM_THREADS, which is set below and may be the caller's, too.
cores=$(env -u OMP_NUM_THREADS nproc)
threads=$((cores / ranks))
read -ra mpirun <<<"${MPIRUN:-mpirun --oversubscribe --bind-to none}"
if [ "$(id -u)" -eq 0 ] && [ -z "${MPIRUN:-}" ]; then mpirun+=(--allow-run-as-root); fi
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} OMP_WAIT_POLICY=passive

if ! [ -x "$bin/src/zea" ]; then
  say "build"
  jobs/setup.sh
  jobs/build.sh "$(basename "$bin")" zea zea_import zea_consolidate zea_inspect zea_item_check
fi
mkdir -p "$out"
deck=$out/deck.toml run=$out/run
has_checkpoint() { compgen -G "$run/checkpoints/step-*/manifest.json" >/dev/null; }

# Everything that the deck and the packed data depend on.
asked="MODEL=$(toml "$model") VISION=$(toml "$vision") AUDIO=$(toml "$audio") PROJECTOR=${PROJECTOR:-mlp}\
 MAX_PIXELS=${MAX_PIXELS:=0} MAX_TILES=${MAX_TILES:=0} VIDEO_MAX_PIXELS=${VIDEO_MAX_PIXELS:=0} MAX_FRAMES=${MAX_FRAMES:=0}\
${AUDIO_IN_VIDEO:+ AUDIO_IN_VIDEO=1}"
from="DATA=$(toml "$data") IMAGES=$(toml "$images") HELD_OUT=${HELD_OUT:=0.02}${FPS:+ FPS=$FPS}"

# write_deck STEPS: with an evaluation where there is held-out data.
write_deck() {
  local every=$(($1 > 400 ? $1 / 8 : 50))
  {
    printf '# Written by jobs/finetune.sh, which writes it again until you change it or a run has begun.\n# for %s\n' "$asked"
    printf '[model]\nactivation_checkpointing = 1\n'
    if [ -z "$vision$audio" ]; then
      printf 'weights = %s\n' "$(toml "$model")"
    else
      printf '\n[model.llm]\nweights = %s\n' "$(toml "$model")"
      [ -z "$vision" ] || printf '\n[model.vision]\nweights = %s\nprojector = "%s"\n' "$(toml "$vision")" "${PROJECTOR:-mlp}"
      [ -z "$audio" ] || printf '\n[model.audio]\nweights = %s\n' "$(toml "$audio")"
    fi
    printf '\n[mesh.llm]\nstrategy = "full_shard"\n\n[data]\ntrain = %s\n' "$(toml "$out/train.h5")"
    [ ! -s "$out/eval.h5" ] || printf 'eval = %s\n' "$(toml "$out/eval.h5")"
    cat <<END
row_tokens = ${ROW_TOKENS:-2048}
resized_max_pixels = $MAX_PIXELS
max_tiles = $MAX_TILES
video_max_pixels = $VIDEO_MAX_PIXELS
max_frames = $MAX_FRAMES
bad_items = "mask"

[precision]
preset = "bf16"

[optim]
lr = 1e-5
warmup_steps = 0.1

[schedule]
steps = $1
global_batch = 16

[checkpoint]
every = $every
END
    [ ! -s "$out/eval.h5" ] || printf '\n[eval]\nevery = %d\nsamples = 256\n' "$every"
  } >"$deck"
  sha256sum <"$deck" >"$out/deck.written"
}

# Whether nobody changed the deck since it was written here.
is_own_deck() { [ ! -s "$deck" ] || { [ -f "$out/deck.written" ] && sha256sum <"$deck" | cmp -s - "$out/deck.written"; }; }

if has_checkpoint || ! is_own_deck; then
  if [ -s "$deck" ] && grep -q '^# for MODEL="' "$deck" && ! grep -qxF "# for $asked" "$deck"; then
    fail "$deck was written$(sed -n 's/^# for / for /p' "$deck") and not for $asked; set OUT= to another folder, or remove $deck and $run"
  fi
else
  write_deck 100
fi

# value_of KEY DEFAULT OVERRIDES...: of a key of the deck that stands there once, or of its override.
value_of() {
  local name=${1#*.} key=$1 default=$2
  shift 2
  {
    echo "$default"
    sed -n "s/^ *$name *= *\([0-9_.]*\).*/\1/p" "$deck"
    printf '%s\n' "$@" | sed -n "s/^${key/./\\.}=//p"
  } | tail -n 1 | tr -d _
}
row_tokens=$(value_of data.row_tokens "${ROW_TOKENS:-2048}" "$@")

# count_of NAME FILE: of a packer's report.
count_of() { sed -n "s/^ *\"$1\": \([0-9]*\),\{0,1\}$/\1/p" "$2" | head -n 1; }

# A login node, where PLAN_ONLY is common, belongs to others, too.
PROCESSES=${PROCESSES:-${PLAN_ONLY:+2}}
PROCESSES=${PROCESSES:-$cores}

# pack OUT OPTIONS...
pack() {
  local packed_for=(--model "$model")
  [ -z "$vision$audio" ] || packed_for=(--deck "$deck")
  [ -z "${AUDIO_IN_VIDEO:-}" ] || packed_for+=(--audio-in-video)
  [ -z "${FPS:-}" ] || packed_for+=(--fps "$FPS")
  ${PLAN_ONLY:+nice} .venv/bin/python jobs/pack.py "$data" "${packed_for[@]}" --images "$images" --sounds "$images" --videos "$images" \
    --max-pixels "$MAX_PIXELS" --max-tiles "$MAX_TILES" --video-max-pixels "$VIDEO_MAX_PIXELS" --max-frames "$MAX_FRAMES" \
    --max-tokens "$row_tokens" --processes "$PROCESSES" --held-out "$HELD_OUT" --on-fault skip --out "$@"
}

# Stops where the data was packed without items because a variable was forgotten; a model must not be trained on the rest.
check_report() {
  local report=$out/train.h5.report.json
  if [ -z "$vision" ] && ! has_part "$model" vision_config && grep -qE 'has (<image>|[1-9][0-9]* images)' "$report"; then
    fail "the data has images, and $model takes none: VISION= names an encoder to compose with it"
  fi
  if [ -z "$audio" ] && grep -qE 'has (<audio>|[1-9][0-9]* clips)' "$report"; then
    has_part "$model" audio_config || fail "the data has sound, and $model takes none: AUDIO= names an encoder to compose with it"
  fi
  if grep -q 'No such file or directory' "$report"; then
    local unread said="paths of the data start from $images; IMAGES= names another folder"
    unread=$(awk -F '[:,]' '/"unreadable": / { found = 1 } found && /"count"/ { print $2; exit }' "$report")
    [ "$unread" -le "$(count_of samples "$report")" ] || fail "files of most entries were not found: $said"
    echo "finetune: some files were not found: $said" >&2
  fi
}

say "data"
if [ -s "$out/train.h5" ]; then
  if grep -q '^MODEL="' "$out/train.from" 2>/dev/null && [ "$(cat "$out/train.from")" != "$asked $from" ]; then
    fail "$out/train.h5 was packed for $(cat "$out/train.from"), not for $asked $from; set OUT=, or remove $out/train.h5 to pack anew"
  fi
  if [ -f "$out/train.row_tokens" ] && [ "$(cat "$out/train.row_tokens")" -lt "$row_tokens" ]; then
    fail "$out/train.h5 was packed for rows of $(cat "$out/train.row_tokens") tokens, without longer samples; remove it to pack for $row_tokens"
  fi
  echo "$out/train.h5 is there"
else
  echo "$asked $from" >"$out/train.from"
  echo "$row_tokens" >"$out/train.row_tokens"
  rm -f "$out/eval.h5"
  code=0
  pack "$out/packed.h5" || code=$?
  if [ -f "$out/packed.h5.report.json" ]; then
    mv "$out/packed.h5.report.json" "$out/train.h5.report.json"
    check_report
  fi
  [ "$code" -eq 0 ] || exit "$code"
  # The integer part of n times the share is held out, of n entries.
  if awk -v kept="$(count_of entries "$out/train.h5.report.json")" -v share="$HELD_OUT" 'BEGIN { exit (kept + 1) * share < 1 }'; then
    pack "$out/eval.h5" --take-held-out || echo "there is no held-out data: nothing is evaluated"
  fi
  mv "$out/packed.h5" "$out/train.h5"
fi
if ! has_checkpoint && is_own_deck; then
  samples=$(count_of samples "$out/train.h5.report.json") batch=$(value_of schedule.global_batch 16 "$@")
  write_deck "$(awk -v n="$samples" -v e="${EPOCHS:-1}" -v b="$batch" '
    BEGIN { s = n * e / b; s = s > int(s) ? int(s) + 1 : s; print s < 1 ? 1 : s }')"
fi

# A run that goes on has its deck, with the overrides that it began with.
begin=(-i "$deck")
if has_checkpoint; then begin=(-r "$run"); fi
set -- run.threads=$((threads > 0 ? threads : 1)) "$@"
say "plan"
"$bin/src/zea" -n --ranks "$ranks" "${begin[@]}" "$@" >"$out/plan.txt"
grep -E '^(plan|note|warning|steps|bytes per rank|  parameters)' "$out/plan.txt"
if [ -n "${PLAN_ONLY:-}" ]; then
  echo "all of it: $out/plan.txt"
  exit 0
fi

if [ -d "$out/model" ]; then
  echo "$out/model is there; remove it to go on with $run, or both to train again"
  exit 0
fi
say "training on $ranks ranks"
if nvidia-smi -L >/dev/null 2>&1 && grep -qx 'device = "cpu"' "$out/plan.txt"; then
  echo "finetune: this trains on CPUs; run.device=cuda takes the GPUs" >&2
fi
"${mpirun[@]}" -n "$ranks" "$bin/src/zea" "${begin[@]}" -d "$run" "$@"

say "the curve and the model"
if .venv/bin/python postprocess/plot_metrics.py "$run" --out "$out/curve.png"; then echo "$out/curve.png"; fi
with=()
# A run that was begun before runs kept these files.
if [ ! -d "$run/companions" ]; then with=(--companions "$model"); fi
"$bin/postprocess/zea-consolidate" "$run" "$out/model/" "${with[@]}"
echo "$out/model: load it with from_pretrained"
