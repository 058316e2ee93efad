# SPDX-License-Identifier: Apache-2.0
"""How fast zea trains on one GPU, beside transformers and a plain loop of PyTorch on the same samples."""

import json
import shutil
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

from activity import Activity, NotRecorded, costliest, of_recording, of_step
from machine import PROJECT
from setting import TimeIsUp, train, write_deck


def turns(setting):
    """Steps before those that are timed, and these."""
    return (1, 2) if setting.quick else (4, 8)


@dataclass
class Case:
    name: str
    config: dict
    lengths: list  # of the samples of a step; those with a picture count its features
    pictures: int = 0  # in each sample
    more: tuple = ()  # overrides
    precisions: tuple = ("bf16",)


def llama_1b():
    return json.loads((PROJECT / "inputs/clip_b32_llama_1b.json").read_text())["text_config"]


def clip_l_llama_1b():
    config = json.loads((PROJECT / "inputs/clip_b32_llama_1b.json").read_text())
    config["vision_config"] |= {
        "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
        "image_size": 336, "patch_size": 14, "projection_dim": 768,
    }  # fmt: skip
    return config | {"vision_feature_layer": -2, "vision_feature_select_strategy": "default"}


def cases(quick):
    quickstart = json.loads((PROJECT / "inputs/fashion_captions_2m.json").read_text())
    found = [Case("the quickstart's model, 64 samples", quickstart, [29] * 64, 1, precisions=("bf16", "fp32"))]
    if quick:
        return [Case("the quickstart's model, 4 samples", quickstart, [29] * 4, 1, precisions=("fp32",))]
    decoder = {"architectures": ["LlamaForCausalLM"], **llama_1b(), "model_type": "llama"}
    # Sample lengths of LLaVA's mix: an image of 576 features, questions and answers of various lengths.
    mix = [640, 700, 812, 655, 1024, 730, 900, 688]
    return [
        Case("Llama of 1B, 8 samples of 2k tokens", decoder, [2048] * 8),
        Case("Llama of 1B, 2 samples of 8k tokens", decoder, [8192] * 2),
        Case("Llama of 1B, a sample of 32k tokens", decoder, [32768], more=("model.activation_checkpointing=2",)),
        Case("CLIP-L and a Llama of 1B, 8 samples of LLaVA's mix", clip_l_llama_1b(), mix, 1),
        *found,
    ]


def known_words(text, image):
    """A range of ids without the placeholder's."""
    return (image + 1, text["vocab_size"]) if image + 1 < text["vocab_size"] // 2 else (5, image)


def write_data(path, case, steps):
    import numpy as np
    from dataset_writer import DatasetWriter

    random = np.random.default_rng(7)
    text, image = case.config.get("text_config", case.config), case.config.get("image_token_index", -1)
    with DatasetWriter(path, image) as writer:
        for length in case.lengths * steps:
            pictures, features = [], 0
            if case.pictures:
                size = case.config["vision_config"]["image_size"]
                features = (size // case.config["vision_config"]["patch_size"]) ** 2
                pictures = [random.integers(0, 256, size=(size, size, 3), dtype=np.uint8)]
            words = random.integers(*known_words(text, image), size=length - features)
            tokens = words[:4].tolist() + [image] * features + words[4:].tolist()
            writer.add(tokens, [0] * (features + 4) + [1] * (len(words) - 4), pictures)


def watched(setting, case, deck, name, keys):
    """The Activity of a step; raises NotRecorded."""
    library = setting.tree.test("record_activity.so")
    if not library.is_file():
        raise NotRecorded(f"{library} is not there: no CUPTI was found where zea was built")
    found = []
    for steps in (2, 4):
        folder = setting.folder / "recordings" / f"{name}-{steps}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        more = [*keys, *case.more, f"schedule.steps={steps}"]
        env = {"CUDA_INJECTION64_PATH": str(library), "ZEA_ACTIVITY_FILE": str(folder / "process")}
        got = train(setting, f"{name}-{steps}", deck, 1, *more, seconds=300, env=env)
        found.append(recorded(setting, library, folder, got.outcome))
    return of_step(*found)


def recorded(setting, library, folder, outcome):
    """The launches of a run that has ended."""
    complaints = [line for line in outcome.output.splitlines() if line.startswith("record_activity: ")]
    if complaints or not outcome.ok:
        why = "the recorder complains" if complaints else f"zea ended with {outcome.code} while it was recorded"
        raise NotRecorded("\n".join([why, *complaints, outcome.tail(4)]))
    try:
        return of_recording(folder)
    except NotRecorded as why:
        needs = setting.run(["ldd", library], 60, setting.tree.environment()).output.splitlines()
        missing = [line.strip() for line in needs if "not found" in line]
        raise NotRecorded("\n".join([str(why), *missing, outcome.tail(4)])) from why


def activity_cells(step, seconds):
    """Launches of a step, its ms in which the GPU does nothing, and the share in which it does anything."""
    if not step or not step.kinds:
        return ["-", "-", "-"]
    busy = min(step.busy, seconds)
    return [f"{step.launches:.0f}", f"{1e3 * (seconds - busy):.1f}", f"{100 * busy / seconds:.0f} %"]


@dataclass
class Work:
    """FLOPs of a step of the model, whichever program trains it, as zea counts them."""

    tflop: float
    peak: float = 0  # TFLOP/s of the GPU; 0: not known

    def share(self, seconds):
        rate = self.tflop / seconds
        return f"{100 * rate / self.peak:.1f} %" if self.peak else f"- ({rate:.3g} TFLOP/s)"


def work_of(lines, seconds):
    """From a run's lines, of which a step takes so long."""
    tflops = statistics.median(line["model_tflops"] for line in lines)
    mfu = statistics.median(line.get("mfu", 0) for line in lines)
    return Work(tflops * seconds, tflops / mfu if mfu else 0)


def variants(setting, case):
    """Names and overrides of the ways in which zea trains: graphs are for steps that repeat, which a GPU keeps."""
    found = {"zea": []}
    if setting.device == "cuda" and len(set(case.lengths)) == 1:
        found["zea, graphs"] = ["run.cuda_graphs=1"]
    return found


def of_zea(setting, part, case, folder, precision, variant):
    """A row of the table, and of a step its work and Activity; None each where there is none."""
    (folder / "config.json").write_text(json.dumps(case.config))
    rows, (warm, timed) = sum(case.lengths), turns(setting)
    model = f'config = "{folder}/config.json"'
    deck = write_deck(folder, model, folder / "data.h5", rows, len(case.lengths), warm + timed)
    name = f"speed-{folder.name}-{precision}-{variant}".replace(", ", "-")
    keys = [f"precision.preset={precision}", *variants(setting, case)[variant]]
    got = train(setting, name, deck, 1, *keys, *case.more, seconds=300)
    who = f"{variant}, {precision}"
    part.check(f"{case.name}: {who}, trains", got.ok, got.outcome.tail())
    if not got.ok:
        return [who, "-"], None, None
    lines = got.lines()[warm:]
    seconds = statistics.median(rows / line["tokens_per_second"] for line in lines)
    memory = max((line.get("gpu_memory", {}).get("peak_reserved_bytes", 0) for line in lines), default=0)
    work = work_of(lines, seconds)
    try:
        step = watched(setting, case, deck, name, keys)
    except (NotRecorded, TimeIsUp) as why:  # what was measured before counts
        step = None
        part.leave_out(f"what the GPU does in a step of {who}", str(why))
    cells = [f"{1e3 * seconds:.1f}", f"{rows / seconds:.0f}", work.share(seconds), *activity_cells(step, seconds)]
    return [who, *cells, gib(memory)], work, step


def gib(count):
    return f"{count / 2**30:.1f}" if count else "-"


def of_peer(setting, folder, way, precision, work):
    script = [sys.executable, "-B", Path(__file__).parent / "peer.py"]
    command = [*script, folder, way, precision, setting.device, *turns(setting)]
    found = setting.run(command, 300)
    name = {"eager": "transformers", "compile": "transformers, compiled", "plain": "a plain loop"}[way]
    if not found.ok:
        return [f"{name}, {precision}", "- (" + (found.tail(1) or f"exit code {found.code}") + ")"]
    answer = json.loads(found.output.strip().splitlines()[-1])
    seconds = statistics.median(answer["seconds"])
    step = Activity(**answer["activity"]) if answer["activity"] else None
    share = work.share(seconds) if work else "-"
    cells = [f"{1e3 * seconds:.1f}", f"{answer['tokens'] / seconds:.0f}", share, *activity_cells(step, seconds)]
    return [f"{name}, {precision}", *cells, gib(answer["bytes"])]


HEAD = ["on one GPU", "ms a step", "tokens/s", "MFU", "launches a step", "idle ms a step", "GPU busy", "GiB reserved"]


def speed(setting, part):
    warm, timed = turns(setting)
    part.say(f"Medians of {timed} steps after {warm}; random weights, AdamW, clipping; zea packs, the others pad.")
    part.say("MFU: the model's multiplications as zea counts them, of the GPU's peak, for all who train it.")
    part.say("Launches: kernels, copies and fills; idle: what a step takes longer than these. Of steps of their own.")
    part.say("Beneath: kinds of launches of zea's steps, by their time; shares of the sum of all.")
    all_cases = cases(setting.quick)
    for number, case in enumerate(all_cases):
        try:
            with setting.within(setting.left() / (len(all_cases) - number)):
                rows = measure_case(setting, part, case, setting.folder / f"case{number}")
            times = ", ".join(f"{row[0]} {row[1]} ms" for row in rows)
            part.result = "; ".join(filter(None, [part.result, f"{case.name}: {times}"]))
        except TimeIsUp as cut:
            part.cut(str(cut))


def measure_case(setting, part, case, folder, is_alone=False):
    """Tells what was measured also where the time is over; returns the rows of the table. is_alone: zea's only, without
    graphs."""
    folder.mkdir(exist_ok=True)
    part.say(f"\n### {case.name}\n")
    rows, steps = [], {}
    try:
        write_data(folder / "data.h5", case, sum(turns(setting)))
        for row in rows_of(setting, part, case, folder, steps, is_alone):
            rows.append(row + [""] * (len(HEAD) - len(row)))
    finally:
        if rows:
            part.table(HEAD, rows)
        for who, step in steps.items():
            part.table([f"{who}: launches", "a step", "ms a step", "share"], costliest(step))
    return rows


def rows_of(setting, part, case, folder, steps, is_alone):
    """Returns rows of the table, and adds the GPU's activity in one of zea's steps to `steps`."""
    peer = {"config": case.config, "batch": len(case.lengths), "longest": max(case.lengths)}
    (folder / "peer.json").write_text(json.dumps(peer))
    for precision in case.precisions:
        known = None
        for variant in ["zea"] if is_alone else variants(setting, case):
            row, work, step = of_zea(setting, part, case, folder, precision, variant)
            known = known or work
            if step:
                steps[row[0]] = step
            yield row
        for way in [] if is_alone else ways(setting, case):
            yield of_peer(setting, folder, way, precision, known)


def ways(setting, case):
    found = ["eager"] if setting.quick else ["eager", "compile"]
    return found if case.pictures else [*found, "plain"]


def determinism(setting, part):
    """Measures the cost of run.deterministic."""
    from families import families, prepare

    if setting.device != "cuda":
        return part.leave_out("the cost of run.deterministic", "runs on CPUs are deterministic anyway")
    deck = prepare(setting, families(setting.quick)[0])
    times = {}
    for turn in range(3):
        for exactly in ("false", "true"):
            keys = [f"run.deterministic={exactly}", "precision.preset=bf16"]
            got = train(setting, f"deterministic-{exactly}-{turn}", deck, 1, *keys)
            if not got.ok:
                return part.check(f"run.deterministic={exactly}", False, got.outcome.tail())
            times.setdefault(exactly, []).extend(1 / line["samples_per_second"] for line in got.lines()[2:])
    ratio = statistics.median(times["true"]) / statistics.median(times["false"])
    return part.say(f"- run.deterministic takes {ratio:.2f} times the step of a small Llava (medians, in turn)")
