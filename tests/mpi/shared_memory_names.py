# SPDX-License-Identifier: Apache-2.0
"""Names that processes leave in /dev/shm."""

import re
from pathlib import Path


def names_of(pids):
    """Returns the names that contain one of these process ids, however they are spelled otherwise."""
    own = re.compile(r"(?<![0-9A-Za-z])(%s)(?![0-9A-Za-z])" % "|".join(str(pid) for pid in pids))
    return [path.name for path in Path("/dev/shm").iterdir() if own.search(path.name)]
