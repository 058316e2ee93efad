# SPDX-License-Identifier: Apache-2.0
"""Nodes of a network on this machine: Linux namespaces with a host name, processes, /dev/shm and /tmp of their own,
each joined to a bridge by a virtual Ethernet cable whose rate a token bucket limits. mpirun runs on a login node and
starts its daemons with nsenter in place of ssh; ranks of two nodes have TCP over these cables and nothing else.

    enter()                                  # first of all: the script goes on inside namespaces of its own
    with Network(2) as network:              # node1, node2
        network.run(4, arguments)            # two ranks on each
        network.set_rate(100); network.take_down("node2")

Everything is inside the script's own namespaces, files on a file system in memory included: the kernel removes it when
the script ends, however it ends."""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import zea_run as zr

PROGRAMS = ("ip", "tc", "unshare", "nsenter", "mount", "hostname")
# Where namespaces hide what the machine has: a file system in memory that all nodes share, and one of each node.
SHARED, OWN = Path("/mnt"), Path("/tmp")
INTERFACE = "fabric"
LOGIN = "login"  # where mpirun runs
INSIDE = "ZEA_TEST_NETWORK"  # set inside the script's namespaces
BURST_BYTES = 128 << 10
NEW_NAMESPACES = ["unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
TRY = f"""set -e
mount --make-rprivate / && mount -t tmpfs tmpfs {SHARED} && hostname {LOGIN} && ip link set lo up
ip link add bridge type bridge && ip link add node1 type veth peer name fabric && ip link set node1 master bridge
tc qdisc add dev node1 root tbf rate 100mbit burst {BURST_BYTES} latency 100ms"""
AGENT = """#!/bin/sh
# mpirun starts this in place of ssh: HOST COMMAND...
read -r init < {shared}/nodes/"$1"
shift
exec nsenter --target "$init" --all -- sh -c "$*"
"""
# Process 1 of a node, which also waits for the children of those that ended.
INIT = "while :; do sleep 1; done"


def reason_without_network():
    """Why no such nodes can be made here; None where they can."""
    missing = [name for name in PROGRAMS if not shutil.which(name, path=search_path())]
    if missing:
        return f"no {', '.join(missing)} (Debian: iproute2, util-linux)"
    if hidden := [folder for folder in (SHARED, OWN) if folder in zr.ZEA.resolve().parents]:
        return f"zea is in {hidden[0]}, where the nodes have file systems of their own"
    done = subprocess.run([*NEW_NAMESPACES, "sh", "-c", TRY], capture_output=True, text=True, env=environment())
    if done.returncode:
        return f"no networks can be made here, as root with CAP_NET_ADMIN they can: {done.stderr.strip()}"
    return None


def search_path():
    return os.environ["PATH"] + ":/usr/sbin:/sbin"


def environment():
    return {**os.environ, "PATH": search_path()}


def end_at_once_with_parent():
    zr.end_with_parent(signal.SIGKILL)


def enter():
    """Goes on with the script as process 1 of namespaces of its own, which end with it, and it with this process."""
    if os.environ.get(INSIDE):
        os.environ["PATH"] = search_path()
        run("mount", "--make-rprivate", "/")
        mount_memory(SHARED)
        tempfile.tempdir = str(SHARED / "tests")
        os.mkdir(tempfile.tempdir)
        run("hostname", LOGIN)
        return
    if reason := reason_without_network():
        print(f"skipped: {reason}")
        sys.exit(77)
    # Killed at once whenever this process is interrupted or killed, and all of its namespaces with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    command = [*NEW_NAMESPACES, sys.executable, "-B", *sys.argv]
    done = subprocess.run(command, env={**environment(), INSIDE: "yes"}, preexec_fn=end_at_once_with_parent)
    sys.exit(done.returncode if done.returncode >= 0 else 1)


def run(*command):
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise AssertionError(f"{shlex.join(words)} said: {done.stdout}{done.stderr}")
    return done.stdout


def mount_memory(folder, *prefix):
    """A file system in memory; `prefix`: how to enter a node."""
    run(*prefix, "mount", "-t", "tmpfs", "tmpfs", folder)


class NetworkRun(zr.Run):
    """A run whose ranks are not children of its mpirun."""

    def rank_processes(self):
        """Process ids of the ranks, in their order; the script's processes are all that it sees."""
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.readlink(process / "exe") == str(zr.ZEA):
                    for entry in (process / "environ").read_bytes().split(b"\0"):
                        if entry.startswith(b"OMPI_COMM_WORLD_RANK="):
                            found[int(entry.split(b"=")[1])] = int(process.name)
        return [found[rank] for rank in sorted(found)]


class Network:
    """Nodes node1, node2, ..., which end with `with`."""

    interface, login = INTERFACE, LOGIN

    def __init__(self, nodes):
        self.names = [f"node{number + 1}" for number in range(nodes)]
        self.address_of = {name: f"10.77.0.{number + 1}" for number, name in enumerate(self.names)}
        self.address_of[LOGIN] = "10.77.0.254"
        self.init_of = {}

    def __enter__(self):
        try:
            self.make_bridge()
            for name in self.names:
                self.make_node(name)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        # The kernel removes the cables of a namespace some time after its end, and the next nodes have the same names.
        for device in (*self.names, "bridge"):
            subprocess.run(["ip", "link", "del", device], capture_output=True)
        for init in self.init_of.values():
            init.kill()
            init.wait()
        shutil.rmtree(SHARED / "nodes", ignore_errors=True)

    def make_bridge(self):
        (SHARED / "nodes").mkdir()
        self.agent = SHARED / "nodes/agent"
        self.agent.write_text(AGENT.format(shared=SHARED))
        self.agent.chmod(0o755)
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "bridge", "type", "bridge")
        run("ip", "addr", "add", f"{self.address_of[LOGIN]}/24", "dev", "bridge")
        run("ip", "link", "set", "bridge", "up")

    def make_node(self, name):
        command = [*NEW_NAMESPACES, "sh", "-c", INIT]
        self.init_of[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=end_at_once_with_parent)
        deadline = time.monotonic() + 30
        while not (init := zr.children_of(self.init_of[name].pid)) or not self.is_apart(init[0]):
            if time.monotonic() > deadline:
                raise AssertionError(f"{name} did not start")
            time.sleep(0.01)
        (SHARED / "nodes" / name).write_text(f"{init[0]}\n")
        run("ip", "link", "add", name, "type", "veth", "peer", "name", INTERFACE, "netns", init[0])
        run("ip", "link", "set", name, "master", "bridge", "up")
        for words in (["hostname", name], ["ip", "link", "set", "lo", "up"],
                      ["ip", "addr", "add", f"{self.address_of[name]}/24", "dev", INTERFACE],
                      ["ip", "link", "set", INTERFACE, "up"]):  # fmt: skip
            run(*self.inside(name), *words)
        for folder in ("/dev/shm", OWN):
            mount_memory(folder, *self.inside(name))

    def end_node(self, name):
        """Ends a node and kills all of its processes, like a power failure."""
        init = self.init_of.pop(name)
        init.kill()
        init.wait()
        run("ip", "link", "del", name)

    def is_apart(self, process):
        """Whether a process has come to namespaces of its own, /proc included."""
        with contextlib.suppress(OSError):
            return Path(f"/proc/{process}/cmdline").read_bytes().startswith(b"sh\0")

    def inside(self, name):
        """The words that run a command on a node."""
        return [*f"nsenter --target {(SHARED / 'nodes' / name).read_text().strip()} --all --".split()]

    def mount_own(self, folder):
        """Gives every node a file system of its own there, as where nothing is shared."""
        for name in self.names:
            mount_memory(folder, *self.inside(name))

    def set_rate(self, megabits, names=None):
        """Limits the cables of these nodes (default: all), either way; None: as fast as it goes."""
        for name in names or self.names:
            for enter_node, device in ([], name), (self.inside(name), INTERFACE):
                subprocess.run([*enter_node, "tc", "qdisc", "del", "dev", device, "root"], capture_output=True)
                if megabits:
                    bucket = f"rate {megabits}mbit burst {BURST_BYTES} latency 400ms".split()
                    run(*enter_node, "tc", "qdisc", "add", "dev", device, "root", "tbf", *bucket)

    def take_down(self, name):
        run("ip", "link", "set", name, "down")

    def bring_up(self, name):
        run("ip", "link", "set", name, "up")

    def launcher(self, ranks, names=None):
        """mpirun with as many ranks on each of these nodes (default: all)."""
        names = names or self.names
        hosts = ",".join(f"{name}:{ranks // len(names)}" for name in names)
        tcp = ["--mca", "btl_tcp_if_include", INTERFACE, "--mca", "oob_tcp_if_include", f"{INTERFACE},bridge"]
        daemons = ["--mca", "plm", "rsh", "--mca", "plm_rsh_agent", self.agent]
        return [*zr.MPIRUN, "--host", hosts, *tcp, *daemons, "-n", ranks]

    def start(self, ranks, arguments, directory=None, names=None, limit_seconds=zr.LIMIT):
        command = [*self.launcher(ranks, names), zr.ZEA, *arguments]
        return NetworkRun(command, limit_seconds, directory)

    def run(self, ranks, arguments, directory=None, names=None, limit_seconds=zr.LIMIT):
        with self.start(ranks, arguments, directory, names, limit_seconds) as started:
            return zr.Result(started.wait(), started.output, directory)
