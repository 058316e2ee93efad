# SPDX-License-Identifier: Apache-2.0
"""Several nodes, which are this machine under several host names: MPI tells ranks of other names apart."""

import subprocess
import sys

import zea_run as zr

AGENT = """#!/bin/sh
# mpirun starts this in place of ssh: HOST COMMAND... SMALL_HOST has a /dev/shm as containers have it.
HOST=$1
shift
export HOST COMMAND="$*"
name='hostname "$HOST"; exec sh -c "$COMMAND"'
if [ "$HOST" != "${SMALL_HOST:-}" ]; then exec unshare --uts sh -c "$name"; fi
exec unshare --uts --mount sh -c "mount -t tmpfs -o size=8m tmpfs /dev/shm && $name"
"""
MOUNTING = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"]


def skip_without_names():
    naming = ["unshare", "--uts", "hostname", "nodea"]
    if subprocess.run(naming, capture_output=True).returncode != 0:
        print("skipped: unshare --uts is not allowed here, so there are no host names to tell nodes apart")
        sys.exit(77)


def write_agent(folder):
    agent = folder / "agent.sh"
    agent.write_text(AGENT)
    agent.chmod(0o755)
    return agent


def launcher(agent, nodes):
    """mpirun for nodes as in "nodea:2,nodeb:2"; "": this one."""
    if not nodes:
        return list(zr.MPIRUN)
    return [*zr.MPIRUN, "--host", nodes, "--mca", "plm", "rsh", "--mca", "plm_rsh_agent", agent]
