# SPDX-License-Identifier: Apache-2.0
"""A Slurm of a test's own: munged, slurmctld and two slurmd that share this machine, with all their
files in one folder and on free ports. What they start stays below this process, and ends with it.

    run_guarded(body)          # calls body(folder), in a process that may be killed
"""

import contextlib
import ctypes
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import zea_run as zr

NODES = ("n1", "n2")
CPUS_PER_NODE = 64  # on paper: jobs of these tests run concurrently
CGROUPS = "/sys/fs/cgroup"
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "scontrol")
PATH = os.environ["PATH"] + ":/usr/sbin:/sbin"

# Two slurmd on one machine need a /tmp each (%n). linuxproc knows the processes of a job by their
# parents, so that no other process can be meant. A requeued job waits for cred_expire to pass.
# A job in `low` is preempted by one in `high` that needs its seat, of which a node has one; other
# jobs ask for none.
CONFIG = """\
ClusterName=zea
SlurmctldHost={control}
SlurmUser=root
SlurmdUser=root
SlurmctldPort={ports[0]}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=10
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
TmpFS={folder}/tmp-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
KillWait=5
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
GresTypes=gpu,seat
NodeName=n1 {hosts[0]} Port={ports[1]} CPUs={cpus} Gres=gpu:4,seat:1
NodeName=n2 {hosts[1]} Port={ports[2]} CPUs={cpus} Gres=gpu:4,seat:1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP PreemptMode=OFF
PartitionName=low Nodes=ALL MaxTime=INFINITE State=UP GraceTime=120
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10
"""
# Ranks of the two "nodes" would otherwise share memory as neighbors. SLURM_WAIT: how long srun lets ranks live after
# one that was killed.
JOB_ENVIRONMENT = {
    "OMPI_MCA_btl": "tcp,self", "SLURM_WAIT": "5",
}  # fmt: skip


def reason_without_slurm():
    """Why no cluster can be started here; None where one can."""
    missing = [name for name in PROGRAMS if not shutil.which(name, path=PATH)]
    if missing:
        return f"no {', '.join(missing)}; as root, jobs/setup.sh --slurm installs Slurm"
    if os.geteuid() != 0:
        return "a slurmd needs root"
    if not Path(CGROUPS).is_dir() or not os.listdir(CGROUPS):
        return f"a slurmd does not start without {CGROUPS}, which is not mounted here"
    return None


def skip_without_slurm():
    if reason := reason_without_slurm():
        print(f"skipped: {reason}")
        sys.exit(77)


def keep_descendants():
    """Processes whose parent ends come to this one, instead of leaving its tree."""
    set_child_subreaper = 36
    ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)


def end_at_once_with_parent():
    zr.end_with_parent(signal.SIGKILL)


def descendants(process=None):
    found = []
    for child in zr.children_of(process or os.getpid()):
        found += [child, *descendants(child)]
    return found


def end_descendants():
    while alive := descendants():
        for process in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.02)


def run_guarded(body):
    """Ends with the exit code of body(folder), a process of its own. Nothing that it started is
    left, whichever of the two is killed."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    keep_descendants()
    code = 1
    with tempfile.TemporaryDirectory(prefix="zea-slurm-", ignore_cleanup_errors=True) as folder:
        try:
            if (child := os.fork()) == 0:
                run_in_child(body, Path(folder))
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        finally:
            end_descendants()
    sys.exit(code if code >= 0 else 1)


def run_in_child(body, folder):
    code = 1
    try:
        zr.end_with_parent()
        keep_descendants()
        tempfile.tempdir = folder / "tests"
        tempfile.tempdir.mkdir()
        body(folder)
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        end_descendants()
        if os.getppid() == 1:  # the other one was killed
            shutil.rmtree(folder, ignore_errors=True)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def is_free(port):
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) != 0


def free_ports(count):
    """Not of those that the system deals out, which another process may have until the daemons start."""
    drawn = random.Random(os.urandom(8)).sample(range(10000, 30000), 100)
    return [port for port in drawn if is_free(port)][:count]


def wait_until(happened, what, seconds=90):
    deadline = time.monotonic() + seconds
    while not (result := happened()):
        if time.monotonic() > deadline:
            raise AssertionError(f"no {what() if callable(what) else what} within {seconds} s")
        time.sleep(0.1)
    return result


class Cluster:
    """`network`: nodes of tests/network, of which each has a slurmd; without, both are this machine."""

    def __init__(self, folder, network=None):
        self.folder, self.network = folder, network
        interface = network.interface if network else "lo"
        self.environment = {
            **os.environ, **JOB_ENVIRONMENT, "OMPI_MCA_btl_tcp_if_include": interface, "PATH": PATH,
            "SLURM_CONF": f"{folder}/slurm.conf",
        }
        self.write_files()
        self.start_daemons()

    def write_files(self):
        per_node = [f"{kind}-{node}" for kind in ("spool", "tmp") for node in NODES]
        for name in ("munge", "state", *per_node):
            (self.folder / name).mkdir(mode=0o700)
        key = self.folder / "munge/key"
        key.write_bytes(os.urandom(64))
        key.chmod(0o600)
        control, hosts = "localhost(127.0.0.1)", ["NodeHostname=localhost NodeAddr=127.0.0.1"] * 2
        if self.network:
            control = f"{self.network.login}({self.network.address_of[self.network.login]})"
            hosts = [f"NodeHostname={name} NodeAddr={self.network.address_of[name]}" for name in self.network.names]
        ports = free_ports(3)
        text = CONFIG.format(folder=self.folder, ports=ports, cpus=CPUS_PER_NODE, control=control, hosts=hosts)
        (self.folder / "slurm.conf").write_text(text)
        for number in range(4):
            (self.folder / f"gpu{number}").touch()
        (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/gpu[0-3]\nName=seat Count=1\n")
        (self.folder / "cgroup.conf").touch()

    def start_daemons(self):
        munge = self.folder / "munge"
        names = ("key-file", "socket", "pid-file", "log-file", "seed-file")
        files = [f"--{name}={munge / name.removesuffix('-file')}" for name in names]
        self.start("munged", "--foreground", "--force", *files)
        wait_until((munge / "socket").exists, "munged")
        self.start("slurmctld", *self.config())
        self.slurmds = [None for _ in NODES]
        for number in range(len(NODES)):
            self.start_slurmd(number)
        wait_until(lambda: self.states() == ["idle", "idle"], self.complaint)

    def config(self):
        return "-D", "-f", self.folder / "slurm.conf"

    def start_slurmd(self, number):
        if old := self.slurmds[number]:  # the slurmd of a lost node
            old.wait()
        inside = self.network.inside(self.network.names[number]) if self.network else []
        self.slurmds[number] = self.start("slurmd", *self.config(), "-N", NODES[number], inside=inside)

    def kill_slurmd(self, number):
        """Kills a slurmd but not its jobs."""
        started = self.slurmds[number]
        for process in [*descendants(started.pid), started.pid]:
            if Path(f"/proc/{process}/comm").read_text().strip() == "slurmd":
                os.kill(process, signal.SIGKILL)
        started.kill()
        started.wait()

    def bring_nodes_back(self):
        """Returns nodes to service that are down, drained or did not answer, as an operator would."""
        if self.states() == ["idle", "idle"]:
            return
        self.run("scontrol", "reconfigure")  # asks all nodes
        begin = time.monotonic()

        def are_idle():
            states = self.states()
            for node, state in zip(NODES, states):
                is_late = time.monotonic() > begin + 15
                if state.startswith("comp") and is_late:  # its job has ended
                    self.set_node(node, "state=down", "reason=completing")
                if state.startswith(("down", "drain", "drng")):
                    self.set_node(node, "state=resume")
            return states == ["idle", "idle"]

        wait_until(are_idle, self.complaint)

    def set_node(self, node, *words):
        with contextlib.suppress(AssertionError):  # its state has changed in the meantime
            self.run("scontrol", "update", f"nodename={node}", *words)

    def complaint(self):
        logs = [path.read_text()[-2000:] for path in sorted(self.folder.glob("*.log"))]
        return "\n".join(["two idle nodes; the logs end:", *logs])

    def start(self, *command, inside=()):
        """`inside`: how to enter a node."""
        with open(self.folder / f"{command[0]}-{Path(command[-1]).name}.out", "w") as out:
            return subprocess.Popen(
                [str(word) for word in (*inside, *command)], env=self.environment, stdin=subprocess.DEVNULL,
                stdout=out, stderr=subprocess.STDOUT, cwd=self.folder,
                preexec_fn=end_at_once_with_parent,
            )  # fmt: skip

    def run(self, *command, **more):
        """Returns the output of a Slurm command."""
        done = subprocess.run(
            [str(word) for word in command], env={**self.environment, **more.pop("env", {})},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=90, **more,
        )  # fmt: skip
        if done.returncode:
            raise AssertionError(f"{command} said: {done.stdout}{done.stderr}")
        return done.stdout

    def states(self):
        """Returns the states of the nodes, as one of their partitions has them."""
        with contextlib.suppress(AssertionError):  # slurmctld does not answer yet
            return self.run("sinfo", "-h", "-N", "-p", "test", "-o", "%t").split()
        return []

    def submit(self, folder, *arguments, **environment):
        """sbatch in a folder; a Job. It has a TMPDIR of its own: an mpirun that ends removes the
        folder ompi.<host>.<user> there, and that of another job, which is about to use it, fails."""
        own = {"TMPDIR": tempfile.mkdtemp(dir=self.folder)}
        told = self.run("sbatch", "--parsable", *arguments, cwd=folder, env={**environment, **own})
        return Job(self, folder, told.strip())


class Job:
    def __init__(self, cluster, folder, number):
        self.cluster, self.folder, self.number = cluster, folder, number

    def show(self):
        """Returns Slurm's facts about the job, by name. It takes a process to ask, so not too often."""
        time.sleep(0.1)
        told = self.cluster.run("scontrol", "-o", "show", "job", self.number)
        return dict(entry.split("=", 1) for entry in told.split() if "=" in entry)

    @property
    def log(self):
        path = self.folder / f"zea-{self.number}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def account(self):
        """For a test that failed: the end of its log, and what Slurm's own say of it."""
        told = [f"job {self.number}, whose log ends:", self.log[-4000:]]
        for path in sorted(self.cluster.folder.glob("slurm*.log")):
            lines = path.read_text(errors="replace").splitlines()
            of_job = [line for line in lines if re.search(rf"\b[Jj]ob(Id=| ){self.number}\b", line)]
            told += [f"{path.name}:", *of_job[-20:]]
        return "\n".join(told)

    def starts(self):
        """How often its script began. Slurm's count has starts, too, that it gave up: on a machine that is busy."""
        return len(re.findall(r" start \d+ on ", self.log))

    def signal(self, name):
        """To the batch script, as Slurm sends the one before the time limit."""
        self.cluster.run("scancel", "--batch", f"--signal={name}", self.number)

    def cancel(self):
        self.cluster.run("scancel", self.number)

    def wait(self, seconds=180):
        """Returns Slurm's facts about the job when it has ended for good."""
        ended = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        self.wait_until(lambda: self.show()["JobState"] in ended, "end", seconds)
        return self.show()

    def wait_until(self, happened, what, seconds=180):
        def told():
            state = self.show()["JobState"]
            return f"{what} ({state}); {self.account()}"

        return wait_until(happened, told, seconds)

    def ranks(self):
        """Process ids of the ranks, in their order."""
        found = {}
        wanted = f"SLURM_JOB_ID={self.number}".encode()
        for process in descendants():
            with contextlib.suppress(OSError):
                variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
                if wanted in variables and os.readlink(f"/proc/{process}/exe") == str(zr.ZEA):
                    ranks = [v[10:] for v in variables if v.startswith(b"PMIX_RANK=")]
                    found |= {int(rank): process for rank in ranks}
        return [found[rank] for rank in sorted(found)]
