# SPDX-License-Identifier: Apache-2.0
"""All that a machine with a GPU can tell about zea; tests/gpu/first_run.sh starts it."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[2] / "jobs")]

from machine import run  # noqa: E402
from parts import make_parser, run_parts, setting_of, shared_minutes  # noqa: E402
from report import Report  # noqa: E402
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


def needs():
    """Why no data can be made; empty: it can."""
    found = run([sys.executable, "-c", "import numpy, h5py"], 120)
    return "" if found.ok else "this Python has no NumPy or h5py (PYTHON names another)"


def main():
    arguments = make_parser("first_run", __doc__, PARTS, 25).parse_args()
    setting = setting_of("first_run", arguments)
    report, lacking = Report(arguments.out / "report.md", "zea on this machine"), needs()
    return run_parts(
        setting,
        report,
        arguments.parts,
        lambda name, part: PARTS[name][0](setting, part),
        shared_minutes(setting, arguments.parts, {name: minutes for name, (_, minutes) in PARTS.items()}),
        lambda name: lacking if name in MAKE_DATA else "",
    )


sys.exit(main())
