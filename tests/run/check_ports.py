# SPDX-License-Identifier: Apache-2.0
"""Ranks of one node listen on no TCP port, where everybody on the machine and its networks could disturb them: under
mpirun, without it, and where a user chose TCP they do. jobs/private_network.sh keeps mpirun's own ports from others."""

import contextlib
import os
import re
import subprocess
from pathlib import Path
from unittest import mock

import zea_run as zr

LISTENING = "0A"
PRIVATE = zr.JOBS / "private_network.sh"


def ports_of(process):
    """TCP ports on which it listens."""
    listening = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING:
                listening[f"socket:[{fields[9]}]"] = int(fields[1].rpartition(":")[2], 16)
    found = []
    for entry in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            found += [listening[name] for name in [os.readlink(entry)] if name in listening]
    return found


class Ports(zr.ZeaTest):
    def setUp(self):
        super().setUp()
        deck = zr.write_inputs(self.folder, zr.mixed_samples(8), schedule=["steps = 1000000"])
        self.run_directory = self.folder / "run"
        self.arguments = ["-i", deck, "-d", self.run_directory]

    def ports_of_ranks(self, **environment):
        with mock.patch.dict(os.environ, environment), zr.start(2, self.arguments, self.run_directory) as run:
            run.wait_for_step(1)
            ranks = run.rank_processes()
            self.assertEqual(len(ranks), 2)
            return [port for rank in ranks for port in ports_of(rank)]

    def test_ranks_of_one_node_listen_on_none(self):
        self.assertEqual(self.ports_of_ranks(), [])

    def test_a_user_who_wants_tcp_has_it(self):
        self.assertNotEqual(self.ports_of_ranks(OMPI_MCA_btl="self,tcp"), [])

    def test_a_rank_without_mpirun_listens_on_none_and_starts_no_daemon(self):
        with zr.Run([zr.ZEA, *self.arguments], zr.LIMIT, self.run_directory) as run:
            run.wait_for_step(1)
            self.assertEqual(ports_of(run.process.pid), [])
            self.assertEqual(zr.children_of(run.process.pid), [])

    def test_a_network_of_its_own(self):
        if subprocess.run([PRIVATE, "true"], capture_output=True).returncode:
            self.skipTest("no network of its own is allowed here")
        command = [PRIVATE, *zr.MPIRUN, "-n", 2, zr.ZEA, *self.arguments]
        with zr.Run(command, zr.LIMIT, self.run_directory) as run:
            run.wait_for_step(1)
            mpirun = run.process.pid
            self.assertNotEqual(ports_of(mpirun), [])
            self.assertNotEqual(os.readlink(f"/proc/{mpirun}/ns/net"), os.readlink("/proc/self/ns/net"))
            used = re.findall(r"(?m)^ *(\w+): +[1-9]", Path(f"/proc/{mpirun}/net/dev").read_text())
            self.assertEqual(used, ["lo"])

    def test_private_network_wants_a_command(self):
        done = subprocess.run([PRIVATE], capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("jobs/private_network.sh mpirun -n 4", done.stderr)


zr.main()
