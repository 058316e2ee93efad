# SPDX-License-Identifier: Apache-2.0
"""Measures on one GPU, in minutes, what decides about zea's next work; tests/gpu/lease.sh starts it."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "first_run"), str(HERE.parents[2] / "jobs")]

from parts import make_parser, name_of_machine, run_parts, setting_of  # noqa: E402
from report import Report  # noqa: E402
from setting import TimeIsUp  # noqa: E402
from measurements import MEASUREMENTS  # noqa: E402

MINUTES = 10
OF_HOSTS = 5  # times as long where this script is tried, since others use the host, too


def main():
    arguments = make_parser("lease", __doc__, MEASUREMENTS, MINUTES).parse_args()
    setting = setting_of("lease", arguments)

    def limit_of(name):
        return MEASUREMENTS[name][1] * (OF_HOSTS if setting.device == "cpu" else 1)

    def find_out(name, part):
        measure, _, decides = MEASUREMENTS[name]
        seconds = limit_of(name)
        part.say(f"Limit: {seconds} s. It decides {decides}.")
        over = ""
        try:
            measure(setting, part)
        except TimeIsUp:
            over = f"its time, at most {seconds} s, was over"
            raise
        finally:
            part.result = "; ".join(filter(None, [part.result, over, f"decides {decides}"]))
            part.say(f"\n{part.result}")

    report = Report(arguments.out / "report.md", f"Measurements on {name_of_machine(setting)}")
    return run_parts(setting, report, arguments.parts, find_out, lambda number: limit_of(arguments.parts[number]))


sys.exit(main())
