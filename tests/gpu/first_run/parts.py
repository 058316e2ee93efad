# SPDX-License-Identifier: Apache-2.0
"""Runs the parts of a script one after the other, each within its limit, and reports each as soon as it ends."""

import argparse
import shlex
import time
from pathlib import Path

from machine import Tree, default_tree, launcher_of, query_gpus
from report import Part
from setting import Setting, TimeIsUp


def make_parser(script, description, parts, minutes):
    parser = argparse.ArgumentParser(prog=f"{script}.sh", description=description)
    parser.add_argument("--tree", type=Path, help="build folder with tests, or a packed tree")
    parser.add_argument("--out", type=Path, default=Path(script), help=f"folder of the report (default: {script})")
    parser.add_argument("--parts", nargs="+", choices=parts, default=[*parts])
    parser.add_argument("--minutes", type=float, default=minutes, help=f"that all may take (default: {minutes})")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: tries this script")
    parser.add_argument("--quick", action="store_true", help="less of everything")
    launcher = "the machine's, or the packed tree's where that has no Open MPI, for more ranks than cores"
    parser.add_argument("--mpirun", help=f"how ranks are started (default: {launcher})")
    return parser


def setting_of(script, arguments):
    arguments.out.mkdir(parents=True, exist_ok=True)
    gpus = len(query_gpus("index")) if arguments.device == "cuda" else 0
    if arguments.device == "cuda" and not gpus:
        raise SystemExit(f"{script}: nvidia-smi shows no GPU; --device cpu tries the script itself")
    tree = Tree(arguments.tree or default_tree())
    return Setting(
        tree=tree,
        device=arguments.device,
        gpus=max(1, gpus),
        folder=arguments.out.resolve(),
        mpirun=shlex.split(arguments.mpirun) if arguments.mpirun else launcher_of(tree),
        quick=arguments.quick,
        end=time.monotonic() + 60 * arguments.minutes,
    )


def name_of_machine(setting):
    """The GPUs with their driver, or that there are none."""
    found = query_gpus("name,driver_version") if setting.device == "cuda" else []
    return f"{len(found)} x {found[0][0]}, driver {found[0][1]}" if found else "the host"


def run_parts(setting, report, names, find_out, seconds_of, missing=lambda name: ""):
    """Returns the exit code. find_out(name, part) fills a part; seconds_of(number) is its limit; missing(name) says why
    a part cannot run, or nothing. A part that fails or reaches its limit is reported as such, and the next one runs."""
    for number, name in enumerate(names):
        part = Part(name)
        report.parts.append(part)
        start = time.monotonic()
        if setting.is_over():
            part.leave_out(name, "the minutes of the whole are over")
        elif why := missing(name):
            part.leave_out(name, why)
        else:
            try:
                with setting.within(seconds_of(number)):
                    find_out(name, part)
            except TimeIsUp as cut:
                part.cut(str(cut))
            except Exception as fault:  # of this script, or a file that a program did not write: one part's matter
                part.check(f"{name} came to its end", False, f"{type(fault).__name__}: {fault}")
        part.seconds = time.monotonic() - start
        report.write()
        print(": ".join(filter(None, [name, f"{part.verdict}, {part.seconds:.0f} s", part.result])), flush=True)
    print(f"written to {report.path}")
    return 1 if report.wrong else 0


def shared_minutes(setting, names, minutes):
    """Limits by shares of the time that is left, in the ratio of `minutes`: a part's unused time goes to later ones."""

    def seconds_of(number):
        share = minutes[names[number]] / sum(minutes[name] for name in names[number:])
        return share * setting.left()

    return seconds_of
