# SPDX-License-Identifier: Apache-2.0
"""Compares predicted and measured times of an 8B's layers on several GPUs, along one axis of the mesh at a time: the
seconds of a step, and exposed communication. `zea -n` predicts them from the measured rates of devices and links.

Exposed communication: seconds in which a rank communicates and computes nothing. On GPUs they come from a recording of
every kernel, where the kind of an NCCL kernel identifies the axis. On the host they come from the waits of
`log.trace_step`, where the group of ranks identifies it.
"""

import json
import re
import shutil
import statistics
from dataclasses import dataclass

from activity import busy_of, of_recording
from checks import node
from setting import train, write_deck
from speed import Case, turns, write_data

OFF = 0.15  # of the measured value
NEGLIGIBLE = 0.01  # of the step, of shares
WAITS = "pp and idle"  # all in which a stage does not compute: a receive waits for its sender, too
NCCL = re.compile(r"nccl\w*?(AllGather|ReduceScatter|AllReduce|SendRecv|Broadcast)", re.IGNORECASE)
GATHERS = {"AllGather", "ReduceScatter", "SendRecv", "Broadcast"}
HARDWARE = "hardware.toml"


@dataclass
class Layout:
    keys: callable  # overrides, by ranks
    axes: dict  # by axis the kernels of NCCL that are its
    layers: int = 4
    is_divided: bool = True  # over ranks, each of which has so many layers
    samples: int = 1  # of a step; for each rank where is_data_parallel
    is_data_parallel: bool = False
    is_long: bool = False  # a sample has 8k tokens for each rank, else 8k


def unsharded(*keys):
    return lambda ranks: ["mesh.llm.strategy=no_shard", *(key.format(ranks) for key in keys)]


# Without sharding an all-reduce sums gradients over dp, and every other call is of tp, of cp or of pp.
LAYOUTS = {
    "fsdp": Layout(lambda _: ["mesh.llm.strategy=full_shard"], {"dp": GATHERS}, is_data_parallel=True),
    "tp": Layout(unsharded("mesh.llm.tp={}"), {"tp": GATHERS}),
    "cp": Layout(unsharded("mesh.llm.cp={}"), {"cp": GATHERS, "dp": {"AllReduce"}}, is_divided=False, is_long=True),
    "pp": Layout(unsharded("mesh.llm.pp={}"), {WAITS: set()}, samples=8),
}


def ranks_of(setting):
    """As many as there are GPUs, of which a power of two divides heads and layers."""
    return 1 << (max(2, setting.gpus).bit_length() - 1)


def links(setting, part):
    """zea's own look at the node, and the rates by which it plans."""
    node(setting, part)
    file = setting.folder / HARDWARE
    keys = [f"run.device={setting.device}", "precision.preset=bf16", "-d", setting.folder / "profile"]
    arguments = ["--profile-hardware", file, *keys]
    found = setting.on_ranks(ranks_of(setting), setting.tree.zea, *arguments, seconds=300)
    part.check("zea --profile-hardware measures devices and links", found.ok, found.tail())
    if found.ok:
        text = file.read_text()
        part.quote(text)
        rates = [re.search(rf"(?s)\[inside\].*?^{key} = ([\d.]+)", text, re.M)[1] for key in ("latency_us", "gb_per_s")]
        part.result = f"links of {ranks_of(setting)} ranks: {rates[0]} us, {rates[1]} GB/s"


@dataclass
class Figure:
    """Seconds of a step, or a share of it."""

    name: str
    predicted: float
    measured: float
    is_share: bool = False

    @property
    def deviation(self):
        return self.predicted / self.measured - 1 if self.measured else float("inf")

    @property
    def is_off(self):
        apart = abs(self.predicted - self.measured)
        return apart > OFF * self.measured and not (self.is_share and apart < NEGLIGIBLE)

    def cells(self):
        texts = [f"{100 * x:.1f} %" if self.is_share else f"{1e3 * x:.2f} ms" for x in (self.predicted, self.measured)]
        return [self.name, *texts, f"{100 * self.deviation:+.0f} %", "**off**" if self.is_off else ""]


def exposed(spans, axis):
    """Seconds in which a kernel of the axis runs and none that computes, and seconds in which one of the axis does.
    spans: (kind of NCCL's kernel, or None; begin; end). Axis: kinds; none: all in which nothing computes."""
    computing = [(begin, end) for kind, begin, end in spans if kind is None]
    own = [(begin, end) for kind, begin, end in spans if kind in axis]
    if not axis:
        own = [(min(begin for _, begin, _ in spans), max(end for *_, end in spans))]
    return busy_of(computing + own) - busy_of(computing), busy_of(own)


def kind_of(name):
    found = NCCL.search(name)
    return found[1] if found else None


def of_recordings(folder, ranks, layout):
    """By axis, the mean over ranks of (exposed, all) seconds of a step: of the launches that a run of four steps has
    more than one of two."""
    found = {axis: [] for axis in layout.axes}
    for rank in range(ranks):
        two, four = (of_recording(folder / f"{steps}" / f"rank-{rank}") for steps in (2, 4))
        spans = [(kind_of(name), begin, end) for name, begin, end in four[len(two) :]]
        for axis, kinds in layout.axes.items():
            found[axis].append([1e-9 * seconds / 2 for seconds in exposed(spans, kinds)])
    return {axis: [statistics.mean(column) for column in zip(*each)] for axis, each in found.items()}


def axis_of(group):
    """Returns the axis of a group of ranks, by its name; None: of none."""
    if found := re.search(r"\.(tp|cp|ep|pp)", group):
        return found[1]
    return "dp" if "dp" in group else None


def of_traces(folder, ranks, layout):
    """The same, of traces that zea wrote on the host, in which all of a call that a rank waits for is exposed."""
    found = {axis: [] for axis in layout.axes}
    for rank in range(ranks):
        events = json.loads((folder / f"rank-{rank:05}.json").read_text())["traceEvents"]
        seconds = {"wait": {}, "communication": {}}
        for event in events:
            if event.get("cat") in seconds:
                of_axis = axis_of(event["name"].rsplit(" of ", 1)[1])
                for axis in {of_axis, WAITS}:
                    spans = seconds[event["cat"]].setdefault(axis, [])
                    spans.append((event["ts"], event["ts"] + event["dur"]))
        for axis in layout.axes:
            found[axis].append([1e-6 * busy_of(seconds[kind].get(axis, [])) for kind in ("wait", "communication")])
    return {axis: [statistics.mean(column) for column in zip(*each)] for axis, each in found.items()}


def recorded(setting, name, deck, keys, layout):
    """Runs of two and of four steps, each rank of which is recorded."""
    library, folder = setting.tree.test("record_activity.so"), setting.folder / "recordings" / name
    if not library.is_file():
        raise RuntimeError(f"{library} is not there: no CUPTI was found where zea was built")
    shutil.rmtree(folder, ignore_errors=True)
    ranks = ranks_of(setting)
    for steps in (2, 4):
        for rank in range(ranks):
            (folder / f"{steps}" / f"rank-{rank}").mkdir(parents=True)
        wrapper = folder / f"{steps}" / "zea.sh"
        wrapper.write_text(
            f'#!/bin/sh\nexport ZEA_ACTIVITY_FILE="{folder}/{steps}/rank-$OMPI_COMM_WORLD_RANK/process"\n'
            f'exec "{setting.tree.zea}" "$@"\n'
        )
        wrapper.chmod(0o755)
        env = {"CUDA_INJECTION64_PATH": str(library)}
        more = [*keys, f"schedule.steps={steps}"]
        got = train(setting, f"{name}-recorded-{steps}", deck, ranks, *more, env=env, program=wrapper)
        if not got.ok:
            raise RuntimeError(f"zea ended with {got.outcome.code} while it was recorded\n{got.outcome.tail()}")
    return of_recordings(folder, ranks, layout)


def deck_of(setting, name, layout, steps):
    ranks, tokens = ranks_of(setting), 64 if setting.quick else 8192
    layers = layout.layers * (ranks if layout.is_divided else 1)
    sizes = (64, 128, 8, 4, 256) if setting.quick else (4096, 14336, 32, 8, 16384)
    keys = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size")
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": layers,
        "rms_norm_eps": 1e-5, "max_position_embeddings": 1 << 20, **dict(zip(keys, sizes)),
        "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"},
    }  # fmt: skip
    tokens *= ranks if layout.is_long else 1
    samples = layout.samples * (ranks if layout.is_data_parallel else 1)
    folder = setting.folder / name
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_data(folder / "data.h5", Case(name, config, [tokens] * samples), steps)
    model = f'config = "{folder}/config.json"'
    return write_deck(folder, model, folder / "data.h5", tokens, samples, steps), tokens * samples


def predicted(setting, deck, keys):
    """`zea -n`'s figures: JSON."""
    plan = ["-n", "--ranks", ranks_of(setting), "--hardware", setting.folder / HARDWARE, "--json", "-i", deck]
    found = setting.run([setting.tree.zea, *plan, *keys, f"run.device={setting.device}"], 120)
    if not found.ok:
        raise RuntimeError(f"zea -n ended with {found.code}\n{found.tail()}")
    return json.loads(found.output[found.output.index("{") :])


def figures_of(plan, seconds, found):
    """Compares the plan's JSON with the measured seconds of a step and, by axis, (exposed, all) seconds of calls."""
    figures = [Figure("seconds of a step", plan["seconds"], seconds)]
    for axis, (measured, _) in found.items():
        exposed_seconds = plan["exposed_seconds"]["pp" if axis == WAITS else axis]
        share = exposed_seconds / plan["seconds"] + (plan["idle_share"] if axis == WAITS else 0)
        figures.append(Figure(f"exposed share of {axis}", share, measured / seconds, is_share=True))
    return figures


def measure(setting, part, name):
    """Returns the figures of a layout."""
    if not (setting.folder / HARDWARE).is_file():
        raise RuntimeError(f"there is no {HARDWARE} of the part links, from which zea -n predicts")
    layout, (warm, timed) = LAYOUTS[name], turns(setting)
    deck, tokens = deck_of(setting, name, layout, warm + timed)
    keys = [*layout.keys(ranks_of(setting)), "precision.preset=bf16"]
    traced = [] if setting.device == "cuda" else [f"log.trace_step={warm + timed}"]
    got = train(setting, name, deck, ranks_of(setting), *keys, *traced)
    part.check(f"{name} trains on {ranks_of(setting)} ranks", got.ok, got.outcome.tail())
    if not got.ok:
        return []
    seconds = statistics.median(tokens / line["tokens_per_second"] for line in got.lines()[warm:])
    if setting.device == "cuda":
        found = recorded(setting, name, deck, keys, layout)
    else:
        found = of_traces(got.folder / "trace", ranks_of(setting), layout)
    figures = figures_of(predicted(setting, deck, keys), seconds, found)
    part.table(["figure", "predicted", "measured", "deviation", ""], [figure.cells() for figure in figures])
    overlaps = []
    for axis, (alone, whole) in found.items():
        hidden = 100 * (1 - alone / whole) if whole else 0
        if axis != WAITS:
            overlaps.append(f"{hidden:.0f} % of {1e3 * whole:.2f} ms of {axis} hidden")
    told = [f"{figure.name} {figure.cells()[2]} ({figure.cells()[1]} predicted)" for figure in figures]
    part.result = ", ".join([*told, *overlaps])
    return figures


def predictions(part, figures):
    """Names the predictions that were off."""
    off = [
        f"{name}: {figure.name} {100 * figure.deviation:+.0f} %"
        for name, each in figures.items()
        for figure in each
        if figure.is_off
    ]
    count = sum(map(len, figures.values()))
    part.result = f"{len(off)} of {count} off by more than {100 * OFF:.0f} %" + (f": {'; '.join(off)}" if off else "")
    part.say(f"{part.result}. Shares that differ by less than {100 * NEGLIGIBLE:.0f} % of the step do not count.")
