# SPDX-License-Identifier: Apache-2.0
"""Tests that compute pass whatever this processor is told that it cannot do: the vectors of
libtorch's kernels (ATEN_CPU_CAPABILITY), those of oneDNN (ONEDNN_MAX_CPU_ISA), and our own products
of bf16 pairs (ZEA_BF16_PAIRS), each with each. Prints a line for every
setting.

usage: check_processors.py CTEST BUILD [CTEST ARGUMENTS]

Without arguments for ctest: the labels unit, mpi and reference. ZEA_PROCESSORS=<regex> chooses
settings by name, as in the table.
"""

import itertools
import os
import re
import subprocess
import sys
import time

CHOICES = {
    "ATEN_CPU_CAPABILITY": ["", "default", "avx2", "avx512"],
    "ONEDNN_MAX_CPU_ISA": ["", "AVX2", "AVX512_CORE", "AVX512_CORE_BF16"],
    "ZEA_BF16_PAIRS": ["", "attention", "none", "converted"],
}


def settings():
    """Name and environment of each; what is "own" is left to the processor."""
    for values in itertools.product(*CHOICES.values()):
        yield " ".join(value or "own" for value in values), {
            name: value for name, value in zip(CHOICES, values) if value}


def failures(ctest, arguments, environment):
    """Names of tests that failed under a setting, and how many ran."""
    outer = {name: value for name, value in os.environ.items() if name not in CHOICES}
    done = subprocess.run([*ctest, *arguments], env=outer | environment, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    counts = re.search(r"(\d+) tests? failed out of (\d+)", done.stdout)
    assert counts and int(counts[2]) > 0, f"ctest ran nothing:\n{done.stdout}"
    return re.findall(r"\d+ - (\S+) \((?!Skipped|Disabled)", done.stdout), int(counts[2])


def main():
    program, build, *arguments = sys.argv[1:]
    arguments = arguments or ["-L", "unit|mpi|reference", "-LE", "long"]
    chosen = [(name, environment) for name, environment in settings()
              if re.search(os.environ.get("ZEA_PROCESSORS", ""), name)]
    assert chosen, "ZEA_PROCESSORS names no setting"
    print(f"{'  '.join(CHOICES)}: failed of all, seconds")
    some_failed = False
    for name, environment in chosen:
        begin = time.monotonic()
        failed, ran = failures([program, "--test-dir", build], arguments, environment)
        some_failed |= bool(failed)
        print(f"{name:<42}{len(failed):>4} of {ran:<5}{time.monotonic() - begin:>6.0f}  "
              + " ".join(failed), flush=True)
    return some_failed


if __name__ == "__main__":
    sys.exit(main())
