#!/usr/bin/env bash
# Trains a model of a Hugging Face directory on conversations about images, sound and videos, in one go: packs the data, prints the
# plan, trains, and writes a directory that transformers loads. What is done is skipped, and a run that was interrupted goes on.
#   jobs/finetune.sh MODEL DATA.json [section.key=value ...]      # overrides of the deck, e.g. optim.lr=1e-5 mesh.llm.tp=2
# MODEL: a Hugging Face directory (LLaVA-1.5, -NeXT, -OneVision, Pixtral, Mistral 3, Qwen2-VL to Qwen3-VL, InternVL, SmolVLM, Gemma 3,
# Qwen2-Audio, Voxtral, or a language model, for conversations of text alone). With VISION= and AUDIO=, directories of encoders (CLIP,
# SigLIP and others; Whisper), MODEL is a language model that they are put together with; PROJECTOR=mlp may be another for images
# (zea -h model.vision.projector).
# DATA.json: conversations as LLaVA or OpenAI has them, or another source that jobs/pack.py takes, also a folder; paths of images, clips of
# sound, and folders of the frames of videos (Qwen2-VL to Qwen3-VL) start from its folder, or that folder, or from IMAGES=.
# RANKS=1, OUT=finetuned, BIN=build/release (a build folder), ROW_TOKENS=2048, MAX_PIXELS= (of an image that is resized; 0: as the
# family has it), MAX_TILES= (that an image is cut into), VIDEO_MAX_PIXELS= (of a frame; in Qwen3-VL of all frames of a video),
# MAX_FRAMES= (that are taken of a video; 0: as MODEL says) and MPIRUN='mpirun --oversubscribe --bind-to none' may be set (as root
# Open MPI wants --allow-run-as-root in it, too). With PLAN_ONLY=1 nothing is trained yet; the same command without it trains.
set -euo pipefail
if [ $# -lt 2 ] || [[ $1 == -* ]]; then
  sed -n 's/^# \{0,1\}//p' "$0" | sed -n '2,14p' >&2
  exit 2
fi
# directory_of NAME: of a model, in full; a name that is none ends the script before anything is built.
directory_of() {
  if [ -f "$1/config.json" ]; then
    realpath "$1"
  else
    echo "finetune: $1 is no Hugging Face directory: it has no config.json" >&2
    exit 2
  fi
}
model=$(directory_of "$1")
data=$(realpath "$2")
shift 2
out=$(realpath -m "${OUT:-finetuned}")
folder=$data
[ -d "$data" ] || folder=$(dirname "$data")
images=$(realpath "${IMAGES:-$folder}")
vision=${VISION:+$(directory_of "$VISION")}
audio=${AUDIO:+$(directory_of "$AUDIO")}
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
bin=${BIN:-build/release}
ranks=${RANKS:-1}
# nproc itself heeds OMP_NUM_THREADS, which is set below and may be the caller's, too.
cores=$(env -u OMP_NUM_THREADS nproc)
threads=$((cores / ranks))
max_pixels=${MAX_PIXELS:-0}
max_tiles=${MAX_TILES:-0}
video_max_pixels=${VIDEO_MAX_PIXELS:-0}
max_frames=${MAX_FRAMES:-0}
read -ra mpirun <<<"${MPIRUN:-mpirun --oversubscribe --bind-to none}"
if [ "$(id -u)" -eq 0 ] && [ -z "${MPIRUN:-}" ]; then mpirun+=(--allow-run-as-root); fi
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} OMP_WAIT_POLICY=passive

say() { printf '\n== %s\n' "$1"; }

if ! [ -x "$bin/src/zea" ]; then
  say "build"
  jobs/setup.sh
  jobs/build.sh "$(basename "$bin")" zea zea_import zea_consolidate zea_inspect
fi
mkdir -p "$out"

deck=$out/deck.toml
parts="weights = \"$model\""
packed_for=(--model "$model")
if [ -n "$vision$audio" ]; then
  packed_for=(--deck "$deck")
  parts="[model.llm]
weights = \"$model\""
  [ -z "$vision" ] || parts+="
[model.vision]
weights = \"$vision\"
projector = \"${PROJECTOR:-mlp}\""
  [ -z "$audio" ] || parts+="
[model.audio]
weights = \"$audio\""
fi
asked="# for MODEL=$model VISION=$vision AUDIO=$audio PROJECTOR=${PROJECTOR:-mlp} ROW_TOKENS=${ROW_TOKENS:-2048}\
 MAX_PIXELS=$max_pixels MAX_TILES=$max_tiles VIDEO_MAX_PIXELS=$video_max_pixels MAX_FRAMES=$max_frames"
if [ -s "$deck" ]; then
  if grep -q '^# for MODEL=' "$deck" && ! grep -qxF "$asked" "$deck"; then
    echo "finetune: $deck was written" >&2
    grep '^# for MODEL=' "$deck" >&2
    echo "and not $asked; remove what lies in $out, set OUT=, or change the deck and that line" >&2
    exit 2
  fi
else
  cat >"$deck" <<END
# Written by jobs/finetune.sh; change it as you like: a run that begins anew reads it.
$asked
[model]
activation_checkpointing = 1
$parts

[run]
threads = $((threads > 0 ? threads : 1))

[mesh.llm]
strategy = "full_shard"

[data]
train = "$out/train.h5"
row_tokens = ${ROW_TOKENS:-2048}
resized_max_pixels = $max_pixels
max_tiles = $max_tiles
video_max_pixels = $video_max_pixels
max_frames = $max_frames

[precision]
preset = "bf16"

[optim]
lr = 1e-5
warmup_steps = 10

[schedule]
steps = 100
global_batch = 16

[checkpoint]
every = 50
END
fi

# Whoever changed the deck, or overrides it, means that.
row_tokens=$({
  sed -n 's/^ *row_tokens *= *\([0-9_]*\).*/\1/p' "$deck"
  printf '%s\n' "$@" | sed -n 's/^data\.row_tokens=//p'
} | tail -n 1 | tr -d _)
row_tokens=${row_tokens:-${ROW_TOKENS:-2048}}

say "data"
if [ -s "$out/train.h5" ]; then
  if [ -f "$out/train.from" ] && [ "$(cat "$out/train.from")" != "$data $images" ]; then
    echo "finetune: $out/train.h5 was packed of $(cat "$out/train.from"), not of $data $images; remove what lies in $out, or set OUT=" >&2
    exit 2
  fi
  if [ -f "$out/train.row_tokens" ] && [ "$(cat "$out/train.row_tokens")" -lt "$row_tokens" ]; then
    echo "finetune: $out/train.h5 was packed for rows of $(cat "$out/train.row_tokens") tokens, without what is longer; remove it to\
 pack for $row_tokens" >&2
    exit 2
  fi
  echo "$out/train.h5 is there"
else
  echo "$data $images" >"$out/train.from"
  echo "$row_tokens" >"$out/train.row_tokens"
  .venv/bin/python jobs/pack.py "$data" "${packed_for[@]}" --images "$images" --sounds "$images" --videos "$images" \
    --max-pixels "$max_pixels" --max-tiles "$max_tiles" --video-max-pixels "$video_max_pixels" --max-frames "$max_frames" \
    --max-tokens "$row_tokens" --on-fault skip --out "$out/train.h5"
fi

# A run that goes on has its deck, with the overrides that it began with.
begin=(-i "$deck")
if compgen -G "$out/run/checkpoints/step-*/manifest.json" >/dev/null; then begin=(-r "$out/run"); fi
say "plan"
"$bin/src/zea" -n --ranks "$ranks" "${begin[@]}" "$@" >"$out/plan.txt"
grep -E '^(plan|note|bytes per rank|  parameters)' "$out/plan.txt"
if [ -n "${PLAN_ONLY:-}" ]; then
  echo "all of it: $out/plan.txt"
  exit 0
fi

if [ -d "$out/model" ]; then
  echo "$out/model is there; remove it and $out/run to train again"
  exit 0
fi
say "training on $ranks ranks"
if nvidia-smi -L >/dev/null 2>&1 && grep -qx 'device = "cpu"' "$out/plan.txt"; then
  echo "finetune: this trains on CPUs; run.device=cuda takes the GPUs" >&2
fi
"${mpirun[@]}" -n "$ranks" "$bin/src/zea" "${begin[@]}" -d "$out/run" "$@"

say "the model for transformers"
with=()
# A run that was begun before runs kept these files.
if [ ! -d "$out/run/companions" ]; then with=(--companions "$model"); fi
"$bin/postprocess/zea-consolidate" "$out/run" "$out/model/" "${with[@]}"
echo "$out/model: load it with from_pretrained"
