# SPDX-License-Identifier: Apache-2.0
"""All that a machine with a GPU can tell about zea; tests/gpu/first_run.sh starts it."""

import argparse
import shlex
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[2] / "jobs")]

from machine import Tree, default_tree, launcher_of, query_gpus, run  # noqa: E402
from report import Part, Report  # noqa: E402
from setting import Setting, TimeIsUp  # noqa: E402
import checks  # noqa: E402
import speed  # noqa: E402

# In order of importance, each with the minutes of 25 that it may take: unused minutes go to the others. Some need
# Python's packages for data.
PARTS = {
    "versions": (checks.versions, 0.5),
    "node": (checks.node, 1),
    "kernels": (checks.kernels, 2),
    "collectives": (checks.collectives, 1),
    "training": (checks.training, 1.5),
    "parity": (checks.parity, 5),
    "resume": (checks.resume, 2),
    "memory": (checks.memory, 1),
    "speed": (speed.speed, 9),
    "tables": (checks.tables, 1.5),
    "determinism": (speed.determinism, 0.5),
}
MAKE_DATA = {"parity", "resume", "memory", "speed", "determinism"}


def parse():
    parser = argparse.ArgumentParser(prog="first_run.sh", description=__doc__)
    parser.add_argument("--tree", type=Path, help="build folder with tests, or a packed tree")
    parser.add_argument("--out", type=Path, default=Path("first_run"), help="folder of the report (default: first_run)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[*PARTS])
    parser.add_argument("--minutes", type=float, default=25, help="that all may take (default: 25)")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: tries this script")
    parser.add_argument("--quick", action="store_true", help="less of everything")
    launcher = "the machine's, or the packed tree's where that has no Open MPI, for more ranks than cores"
    parser.add_argument("--mpirun", help=f"how ranks are started (default: {launcher})")
    return parser.parse_args()


def needs():
    """Why no data can be made; empty: it can."""
    found = run([sys.executable, "-c", "import numpy, h5py"], 120)
    return "" if found.ok else "this Python has no NumPy or h5py (PYTHON names another)"


def main():
    arguments = parse()
    arguments.out.mkdir(parents=True, exist_ok=True)
    gpus = len(query_gpus("index")) if arguments.device == "cuda" else 0
    if arguments.device == "cuda" and not gpus:
        raise SystemExit("first_run: nvidia-smi shows no GPU; --device cpu tries the script itself")
    tree = Tree(arguments.tree or default_tree())
    setting = Setting(
        tree=tree,
        device=arguments.device,
        gpus=max(1, gpus),
        folder=arguments.out.resolve(),
        mpirun=shlex.split(arguments.mpirun) if arguments.mpirun else launcher_of(tree),
        quick=arguments.quick,
        end=time.monotonic() + 60 * arguments.minutes,
    )
    report, missing = Report(arguments.out / "report.md", "zea on this machine"), needs()
    for number, name in enumerate(arguments.parts):
        part, (find_out, minutes) = Part(name), PARTS[name]
        report.parts.append(part)
        start = time.monotonic()
        if setting.is_over():
            part.leave_out(name, f"the {arguments.minutes:g} minutes are over")
        elif name in MAKE_DATA and missing:
            part.leave_out(name, missing)
        else:
            try:
                with setting.within(minutes / sum(PARTS[other][1] for other in arguments.parts[number:])):
                    find_out(setting, part)
            except TimeIsUp as cut:
                part.cut(str(cut))
            except Exception as fault:  # of this script, or a file that a program did not write: one part's matter
                part.check(f"{name} came to its end", False, f"{type(fault).__name__}: {fault}")
        part.seconds = time.monotonic() - start
        report.write()
        print(f"{name}: {part.verdict}, {part.seconds:.0f} s", flush=True)
    print(f"written to {report.path}")
    return 1 if report.wrong else 0


sys.exit(main())
