# SPDX-License-Identifier: Apache-2.0
"""The common part of the checks of the pack scripts: running one, and reading its output by zea's own reader. Exit code
77 (skipped) where a Python package is missing.
"""

import json
import subprocess
import sys
from pathlib import Path

import forked_script

try:
    import h5py  # noqa: F401
    import numpy as np  # noqa: F401
    import tokenizers  # noqa: F401
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

JOBS, DUMP = Path(sys.argv[1]), sys.argv[2]


def run(script, *arguments):
    return forked_script.run(JOBS / script, *arguments)


def dump(path, tokens_per_image, tokens_per_clip=0):
    command = [DUMP, str(path), str(tokens_per_image), str(tokens_per_clip)]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        raise AssertionError(result.stderr)
    return json.loads(result.stdout)
