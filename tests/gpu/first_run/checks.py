# SPDX-License-Identifier: Apache-2.0
"""Parts that find out whether what GPUs compute is right."""

import itertools
import platform
import re
import shutil
import sys
from collections import deque

from families import APART, apart, families, layouts, prepare, ranks_apart
from machine import query_gpus, run
from setting import TimeIsUp, train

# Bounds for losses and norms. fp32: relative to fp32 on the host. bf16: a multiple of the error of one host rank
# against its own fp32, plus a unit of the last place.
SAME_LOSS, SAME_NORM, TIMES_OF_HOST, BF16 = 1e-4, 1e-3, 2, 2**-8
# Bounds for gradients: relative to the tensor's largest element, and to the largest of all tensors if a tensor has only
# rounding errors.
SAME_GRADIENT, NO_GRADIENT = 1e-3, 1e-6
# So that the first moments of the first step are there, which are gradients but for one factor.
KEEP_STEPS = ("checkpoint.every=1", "checkpoint.keep=0")


def versions(setting, part):
    part.say("```text")
    part.say(f"{platform.platform()}, Python {platform.python_version()}")
    for cells in query_gpus("index,name,driver_version,memory.total,pci.bus_id"):
        part.say("GPU " + ", ".join(cells))
    for command in (["nvidia-smi", "topo", "-m"], [*setting.mpirun[:1], "--version"], [setting.tree.zea, "-c"]):
        if shutil.which(command[0]):
            part.say(run(command, 60).output.strip())
    part.say("```")
    for package in ("numpy", "h5py", "torch", "transformers"):
        found = run([sys.executable, "-c", f"import {package}; print({package}.__version__)"], 120)
        part.say(f"- Python's {package}: {found.output.strip() if found.ok else 'not there'}")
    if setting.device == "cuda":
        part.check(f"{setting.gpus} GPUs are there", setting.gpus > 0)


def node(setting, part):
    """zea's own look at the node."""
    keys = [f"run.device={setting.device}", f"run.directory={setting.folder}"]
    found = setting.on_ranks(max(1, setting.gpus), setting.tree.zea, "--check-node", *keys, seconds=180)
    part.check("zea --check-node finds nothing wrong", found.ok, found.tail(30))
    part.say("\n```text\n" + found.output.strip() + "\n```\n")


def programs(setting, part, names, rank_counts, seconds, env=None, arguments=()):
    """Tests of zea's own, each on several numbers of ranks; returns the outputs."""
    outputs = []
    for name in names:
        for ranks in rank_counts:
            plain = {"GTEST_COLOR": "no", **(env or {})}
            found = setting.on_ranks(ranks, setting.tree.test(name), *arguments, seconds=seconds, env=plain)
            outputs.append(found.output)
            passed = len(re.findall(r"^\[       OK \]", found.output, re.M))
            skipped = len(re.findall(r"^\[  SKIPPED \] \S+ \(", found.output, re.M))
            what = f"{name} on {ranks} ranks: {passed} passed, {skipped} skipped, {found.seconds:.0f} s"
            if found.code == 77 or (found.ok and not passed):
                part.leave_out(what, "it skips itself here")
            else:
                told = [line for line in found.output.splitlines() if "Failure" in line or "FAILED" in line]
                part.check(what, found.ok, "\n".join(told) + "\n" + found.tail(30))
    return outputs


def kernels(setting, part):
    programs(setting, part, ["gpu_device_kernels"], [1], 240)


def collectives(setting, part):
    programs(setting, part, ["gpu_nccl_collectives"], setting.rank_counts(), 180)


def training(setting, part):
    programs(setting, part, ["gpu_cuda_training"], setting.rank_counts(), 240)


def tables(setting, part):
    """Grids and pipelines of up to eight ranks, however many GPUs there are."""
    stride = {"ZEA_DEVICE_STRIDE": "97"} if setting.quick else {}
    tested = {"ZEA_TESTED_DEVICE": setting.device} if setting.device == "cpu" else {}
    programs(setting, part, ["gpu_cuda_layouts"], [8], 420, {**stride, **tested})


def differences(numbers, others):
    """The largest relative one of losses and of norms."""
    pairs = list(zip(numbers, others))
    return [max(abs(a[i] - b[i]) / abs(b[i]) for a, b in pairs) for i in range(2)]


def first_moments(training):
    """By tensor, after the first step of a run on one rank that kept its steps."""
    import h5py
    import numpy as np

    with h5py.File(training.checkpoint(1) / "rank-00000.h5") as file:
        found = file["exp_avg"].items()
        return {name: np.concatenate([piece[...].ravel() for piece in pieces.values()]) for name, pieces in found}


def wrong_gradients(got, rounded, exact):
    """How `got` differs from `exact` by more than it may; `rounded`: what the host makes of them in got's precision."""
    largest = max(abs(values).max() for values in exact.values())
    share = SAME_GRADIENT if rounded is exact else BF16
    for name, values in exact.items():
        own = abs(values).max()
        bound = share * own + NO_GRADIENT * largest + TIMES_OF_HOST * abs(rounded[name] - values).max()
        found = abs(got[name] - values).max() if name in got else float("nan")
        if not found <= bound:
            yield f"{name}: {found:.3g} at most, where {bound:.3g} is allowed; the largest is {own:.3g}"


def cases(setting, family):
    """(ranks, layout, overrides, precision): the simplest first, and a few of all kinds before the rest."""
    columns = []
    for ranks, precision in itertools.product(setting.rank_counts(), setting.precisions()):
        found = [*layouts(family, ranks).items()][:: 4 if setting.quick else 1]
        first = 3 * len(columns) % len(found)
        columns.append([(ranks, name, keys, precision) for name, keys in found[first:] + found[:first]])
    ranks = ranks_apart(family)
    if family.encoders and not any(count % ranks == 0 for count in setting.rank_counts()):
        columns.append([(ranks, APART, apart(family), precision) for precision in setting.precisions()])
    return [case for row in itertools.zip_longest(*columns) for case in row if case]


def parity_of(setting, part, family):
    """Goes on from layout to layout."""
    deck = prepare(setting, family)

    def run_on(name, ranks, *keys, device=None):
        folder = f"{family.name}-{name}".replace(" ", "-").replace(",", "")
        return train(setting, folder, deck, ranks, *keys, device=device)

    precisions = setting.precisions()
    host = {p: run_on(f"host-{p}", 1, f"precision.preset={p}", *KEEP_STEPS, device="cpu") for p in precisions}
    for precision, run_of_host in host.items():
        if not run_of_host.ok:
            return part.check(f"{family.name}, {precision}, on the host", False, run_of_host.outcome.tail())
    exact = host["fp32"].numbers()
    gradients = {p: first_moments(run_of_host) for p, run_of_host in host.items()}
    bounds = {"fp32": SAME_LOSS, "bf16": TIMES_OF_HOST * differences(host[precisions[-1]].numbers(), exact)[0] + BF16}
    for ranks, name, keys, precision in cases(setting, family):
        yield
        what = f"{family.name}, {precision}, {name}, {ranks} ranks"
        if setting.is_over():
            raise TimeIsUp(what)
        kept = KEEP_STEPS if (ranks, name) == (1, "no_shard") else ()
        got = run_on(f"{name}-{ranks}-{precision}", ranks, *keys, f"precision.preset={precision}", *kept)
        if not got.ok or len(got.numbers()) != len(exact):
            part.check(what, False, got.outcome.tail())
            continue
        loss, norm = differences(got.numbers(), exact)
        holds = loss <= bounds[precision] and (precision == "bf16" or norm <= SAME_NORM)
        part.check(f"{what}: losses differ by {loss:.1e}, norms of gradients by {norm:.1e}", holds)
        if kept:
            wrong = [*wrong_gradients(first_moments(got), gradients[precision], gradients["fp32"])]
            right = f"{len(gradients['fp32']) - len(wrong)} of {len(gradients['fp32'])}"
            part.check(f"{what}: gradients of {right} tensors are the host's", not wrong, "\n".join(wrong))
    return None


def parity(setting, part):
    """Families in turn: what is cut short has found out something of each."""
    turns = deque(parity_of(setting, part, family) for family in families(setting.quick))
    while turns:
        family = turns.popleft()
        if next(family, turns) is not turns:
            turns.append(family)


def different_tensors(setting, one, other):
    """Returns zea-compare's output for two checkpoints without their runs' names and decks; empty: the same bits."""
    said = setting.run([setting.tree.tool("zea-compare"), "--optimizer", one, other], 120).output.strip()
    lines = [line for line in said.splitlines() if not line.startswith(("run: ", "deck: "))]
    return "" if re.fullmatch(r"\d+ tensors and their states compared, \d differences?", lines[0]) else said


def resume(setting, part):
    """A run that goes on, and what was written while training went on, bit for bit."""
    deck = prepare(setting, families(setting.quick)[0])
    exactly = ["run.deterministic=true"] if setting.device == "cuda" else []
    for ranks in setting.rank_counts()[-1 if setting.quick else 0 :]:
        for precision in setting.precisions():
            what, name = f"{precision}, {ranks} ranks", f"resume-{ranks}-{precision}"
            keys = [*exactly, f"precision.preset={precision}", "mesh.llm.strategy=full_shard", "checkpoint.keep=0"]
            whole = train(setting, name, deck, ranks, *keys, "checkpoint.every=3", "checkpoint.at_end=true")
            rest = train(setting, f"{name}-rest", deck, ranks, resumed=whole.checkpoint(3))
            if not (whole.ok and rest.ok):
                part.check(what, False, whole.outcome.tail() + "\n" + rest.outcome.tail())
                continue
            part.check(f"{what}: losses after the resume are the same bits", whole.numbers()[3:] == rest.numbers())
            short = train(setting, f"{name}-short", deck, ranks, *keys, "checkpoint.at_end=true", "schedule.steps=3")
            for step, other, of in ((6, rest, "at the end of the resumed run"), (3, short, "written under training")):
                differ = different_tensors(setting, whole.checkpoint(step), other.checkpoint(step))
                part.check(f"{what}: weights and states {of} are the same bits", not differ, differ)


def memory(setting, part):
    """Compares zea's prediction of its tensors with the counted peak."""
    for family in families(setting.quick):
        deck = prepare(setting, family)
        for precision in setting.precisions():
            got = train(setting, f"{family.name}-memory-{precision}", deck, 1, f"precision.preset={precision}")
            found = re.search(r"predicted ([\d.]+) MiB, counted ([\d.]+) MiB", got.log())
            what = f"{family.name}, {precision}"
            if not found:
                part.check(f"{what}: the log tells both", False, got.outcome.tail())
                continue
            predicted, counted = float(found[1]), float(found[2])
            holds = abs(predicted / counted - 1) <= 0.1
            part.check(f"{what}: predicted {predicted:.1f} MiB, counted {counted:.1f}", holds)
