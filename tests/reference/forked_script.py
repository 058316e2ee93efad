# SPDX-License-Identifier: Apache-2.0
"""Runs Python scripts as subprocess.run does, but in a fork of this process, which has imported their packages: most
of a short script's time would go into these imports."""

import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path


def run(script, *arguments, env=None):
    """The script's exit code and what it printed."""
    sys.stdout.flush()
    sys.stderr.flush()
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as errors:
        child = os.fork()
        if child == 0:
            become([str(script), *map(str, arguments)], said, errors, env or {})
        _, status = os.waitpid(child, 0)
        for file in (said, errors):
            file.seek(0)
        return subprocess.CompletedProcess(script, os.waitstatus_to_exitcode(status), said.read(), errors.read())


def become(command, said, errors, env):
    """Never returns: the process ends as the script does."""
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(said.fileno(), 1)
        os.dup2(errors.fileno(), 2)
        sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
        os.environ.update({"TOKENIZERS_PARALLELISM": "false", **env})  # after a fork tokenizers would warn
        sys.argv, sys.path[0] = command, str(Path(command[0]).parent)
        runpy.run_path(command[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
