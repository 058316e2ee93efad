# SPDX-License-Identifier: Apache-2.0
"""Asks a model a question, with images, videos, audio or only text, and prints its answer.

usage: zea-generate WEIGHTS QUESTION [--image FILE]... [--video FOLDER [--fps 2]]... [--audio FILE]...
                    [--audio-in-video] [--max-tokens 128]

WEIGHTS is a Hugging Face directory, a run directory, a checkpoint or a weights file. The tokenizer and the chat
template come from a Hugging Face directory: WEIGHTS, or else --model, the directory that the run started from.
jobs/pack.py --prompts packs the question by the chat template, and zea runs on one process with
run.mode = "generate". Items come before the question, or where it has <image>, <video> and <audio>.
"""

import argparse
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ITEMS = ("image", "video", "audio")
PARTS = {"image": "vision_config", "video": "vision_config", "audio": "audio_config"}


def arguments_of():
    parser = argparse.ArgumentParser(
        prog="zea-generate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("weights", type=Path, help="weights of the model")
    parser.add_argument("question", help="text of the question")
    for kind in ITEMS:
        what = "folder of frames" if kind == "video" else "file"
        parser.add_argument(f"--{kind}", type=Path, action="append", default=[], help=f"{what}; may be repeated")
    parser.add_argument("--fps", type=float, default=2, help="frames per second of the videos (default: 2)")
    help_of_tracks = "the first audio files are the audio tracks of the videos (Qwen-Omni)"
    parser.add_argument("--audio-in-video", action="store_true", help=help_of_tracks)
    parser.add_argument("--model", type=Path, help="Hugging Face directory of the tokenizer (default: WEIGHTS)")
    help_of_tokens = "maximum number of tokens to generate (default: 128)"
    parser.add_argument(
        "--max-tokens", "--tokens", type=int, default=128, dest="tokens", metavar="N", help=help_of_tokens
    )
    parser.add_argument("--temperature", type=float, default=0, help="sampling temperature; 0: greedy decoding")
    parser.add_argument("--top-p", type=float, default=1, help="nucleus sampling: probability of the tokens drawn from")
    parser.add_argument("--seed", type=int, default=1, help="seed of sampling")
    spelled = {"float32": "fp32", "bfloat16": "bf16", "float64": "fp64"}
    parser.add_argument(
        "--precision", default="fp32", choices=["fp32", "bf16", "fp64"], type=lambda name: spelled.get(name, name)
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--zea", default=None, help="the program (default: $ZEA, zea, or build/release/src/zea)")
    parser.add_argument("--out", type=Path, help="folder in which to keep data set, log and predictions.jsonl")
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="deck override; may be repeated"
    )
    return parser.parse_args()


def program_of(arguments):
    built = HERE.parent / "build/release/src/zea"
    program = arguments.zea or os.environ.get("ZEA") or shutil.which("zea") or (built if built.exists() else None)
    if program is None:
        sys.exit("zea is neither on the PATH nor in build/release; name it with --zea")
    return program


def model_of(arguments):
    """Its directory: of the tokenizer and of config.json."""
    if not arguments.weights.exists():
        sys.exit(f"{arguments.weights}: there is no such directory or file; name a model's directory, a run or weights")
    model = arguments.model or arguments.weights
    for name in ("tokenizer.json", "config.json"):
        if not (model / name).exists():
            sys.exit(f"{model} holds no {name}; name the Hugging Face directory that the weights began as with --model")
    return model


def check_items(arguments, model):
    from model_directory import read_object  # here, as -h must do without what packing needs

    config = read_object(model / "config.json")
    config = config.get("thinker_config") or config  # the part of Qwen-Omni that answers
    for kind in ITEMS:
        for path in getattr(arguments, kind):
            if not path.exists():
                sys.exit(f"--{kind} {path}: there is no such {'folder' if kind == 'video' else 'file'}")
            if PARTS[kind] not in config:
                family = config.get("model_type")
                sys.exit(f"--{kind} {path}: the {family} model of {model} takes no {kind}; leave it out")
    if arguments.audio_in_video and not 0 < len(arguments.video) <= len(arguments.audio):
        sys.exit(f"--audio-in-video: there are {len(arguments.video)} videos and {len(arguments.audio)} audio files; "
                 "name an audio file for each video, in the same order")


def run(command, what):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{what} failed:\n{(done.stderr.strip() or done.stdout.strip())[-4000:]}")


def has_template(model):
    from packing.chat_template import read_templates

    return bool(read_templates(model))


def write_question(arguments, model, folder):
    """A conversation that ends with the question, whose items stand as in transformers' processors: parts before the
    text, where a chat template takes them and the question does not say where they stand."""
    entry, question = {"id": "question", "fps": arguments.fps}, arguments.question
    missing = {}
    for kind in ITEMS:
        paths = getattr(arguments, kind)
        names = []
        for path in paths:
            # Beside what lies there, of earlier questions or somebody's.
            numbers = (f"{kind}-{number}{path.suffix}" for number in itertools.count())
            name = next(name for name in numbers if not (folder / name).exists())
            if path.is_dir():
                shutil.copytree(path, folder / name)
            else:
                shutil.copyfile(path, folder / name)
            names.append(name)
        if names:
            entry[kind] = names
        missing[kind] = max(len(names) - question.count(f"<{kind}>"), 0)
    if arguments.audio_in_video and missing["audio"]:
        # Videos that the question names have their audio tracks behind them.
        question, placed = re.subn(r"<video>(?!<audio>)", "<video><audio>", question, count=missing["audio"])
        missing["audio"] -= placed
    pairs = min(missing["video"], missing["audio"]) if arguments.audio_in_video else 0
    rest = {**missing, "video": missing["video"] - pairs, "audio": missing["audio"] - pairs}
    groups = [["image"]] * rest["image"] + [["video", "audio"]] * pairs
    groups += [[kind] for kind in ITEMS[1:] for _ in range(rest[kind])]
    marks = "".join("".join(f"<{kind}>" for kind in group) + "\n" for group in groups)
    parts = [{"type": kind} for group in groups for kind in group]
    follows_video = re.findall("(<video>)?<audio>", marks + question)
    videos = len(arguments.video)
    if arguments.audio_in_video and follows_video.count("<video>") == videos:
        # The first files are the tracks, also where other audio comes before a video.
        tracks, others = iter(entry["audio"][:videos]), iter(entry["audio"][videos:])
        entry["audio"] = [name for video in follows_video if (name := next(tracks if video else others, None))]
    says_where = any(f"<{kind}>" in question for kind in ITEMS if kind in entry)
    if says_where or not has_template(model):
        content = marks + question
    else:
        content = [*parts, {"type": "text", "text": question}]
    entry["messages"] = [{"role": "user", "content": content}]
    (folder / "question.json").write_text(json.dumps([entry]), encoding="utf-8")


def pack(arguments, model, folder):
    folders = [word for kind in ("images", "sounds", "videos") for word in (f"--{kind}", folder)]
    packer = HERE.parent / "jobs/pack.py"
    command = [sys.executable, packer, folder / "question.json", "--model", model, *folders]
    options = ["--audio-in-video"] if arguments.audio_in_video else []
    run([*command, *options, "--prompts", "--processes", 1, "--out", folder / "question.h5"], "packing the question")


def end_of_answer(question):
    """Returns the name of the last special token of the packed answer, or None: models that learned such answers end
    theirs with it, whatever their directory names."""
    import h5py  # here, as -h must do without what packing needs

    with h5py.File(question) as data:
        targets = data["tokens"][...][data["loss_mask"][...] == 1]
        offsets, values = data["special_text_offsets"][...], data["special_text_values"][...]
    special = [token for token in targets if token + 1 < len(offsets) and offsets[token] < offsets[token + 1]]
    return values[offsets[special[-1]] : offsets[special[-1] + 1]].tobytes().decode() if special else None


def generate(arguments, folder):
    keys = {
        "model.weights": str(arguments.weights.resolve()),
        "run.mode": "generate",
        "run.threads": arguments.threads,
        "run.seed": arguments.seed,
        "data.eval": str(folder / "question.h5"),
        "data.row_tokens": 1 << 20,
        "precision.preset": arguments.precision,
        "schedule.global_batch": 1,
        "eval.generate_tokens": arguments.tokens,
    }
    if end := end_of_answer(folder / "question.h5"):
        keys["eval.stop_texts"] = [end]
    if arguments.temperature != 0:
        keys["eval.temperature"] = arguments.temperature
    if arguments.top_p != 1:
        keys["eval.top_p"] = arguments.top_p
    (folder / "deck.toml").write_text("# Of zea-generate, which says all on the command line.\n")
    out = folder / "run"
    overrides = [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in keys.items()] + arguments.set
    run([program_of(arguments), "-i", folder / "deck.toml", "-d", out, *overrides], "zea")
    predictions = (out / "predictions.jsonl").read_text(encoding="utf-8")
    if not predictions:
        sys.exit(f"nothing was generated; zea's log:\n{(out / 'log.txt').read_text(encoding='utf-8')[-4000:]}")
    return json.loads(predictions)["generated"]


def main():
    arguments = arguments_of()
    sys.path.insert(0, str(HERE.parent / "jobs"))
    from packing.report import run as ending_in_a_sentence

    # Printed texts hold no control characters of tokens and files.
    ending_in_a_sentence(lambda: answer(arguments), "zea-generate")


def answer(arguments):
    model = model_of(arguments)
    check_items(arguments, model)
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.out or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        folder = folder.resolve()
        write_question(arguments, model, folder)
        pack(arguments, model, folder)
        print(generate(arguments, folder).strip())


if __name__ == "__main__":
    main()
