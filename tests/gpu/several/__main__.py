# SPDX-License-Identifier: Apache-2.0
"""Compares the plan's seconds and exposed communication with those of 2 to 8 GPUs of a node; tests/gpu/several.sh
starts it."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "first_run"), str(HERE.parents[2] / "jobs")]

from parts import make_parser, name_of_machine, run_parts, setting_of, shared_minutes  # noqa: E402
from report import Report  # noqa: E402
import axes  # noqa: E402

MINUTES = 20
# In order, each with the minutes that it may take: unused minutes go to the others.
PARTS = {"links": 3, **{name: 4 for name in axes.LAYOUTS}, "predictions": 0.1}


def main():
    arguments = make_parser("several", __doc__, PARTS, MINUTES).parse_args()
    setting, figures = setting_of("several", arguments), {}
    if setting.device == "cuda" and setting.gpus < 2:
        raise SystemExit("several: nvidia-smi shows one GPU, and links need two; tests/gpu/lease.sh measures one")

    def find_out(name, part):
        if name == "links":
            axes.links(setting, part)
        elif name == "predictions":
            axes.predictions(part, figures)
        else:
            figures[name] = axes.measure(setting, part, name)

    report = Report(arguments.out / "report.md", f"The plan against {name_of_machine(setting)}")
    return run_parts(setting, report, arguments.parts, find_out, shared_minutes(setting, arguments.parts, PARTS))


sys.exit(main())
