# SPDX-License-Identifier: Apache-2.0
"""Where /dev/shm is too small, as in containers, ranks of a node talk over MPI: the run says so in
one line of its log and is the same run. Skipped where a /dev/shm of its own cannot be mounted."""

import subprocess
import sys
from unittest import mock

import zea_run as zr

MOUNT = 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"'
ALONE = ["unshare", "--mount", "bash", "-c", MOUNT, "bash"]


def can_mount():
    return subprocess.run([*ALONE, "true"], capture_output=True).returncode == 0


class SmallMemory(zr.ZeaTest):
    def train(self, name):
        result = self.run_in(self.folder / name, 2, "-i", self.deck)
        log = (result.directory / "log.txt").read_text().splitlines()
        return result, [line for line in log if "collectives go over MPI" in line]

    def test_says_so_once_and_trains_alike(self):
        precise = ['preset = "fp64"']
        self.deck = zr.write_inputs(self.folder, zr.mixed_samples(12), schedule=["steps = 3"], precision=precise)

        expected, said = self.train("enough")
        self.assertEqual(said, [])
        with mock.patch.object(zr, "MPIRUN", [*ALONE, *zr.MPIRUN]):
            found, said = self.train("little")

        self.assertEqual(len(said), 1, found.output)
        self.assertIn("warning", said[0])
        self.assertIn("/dev/shm", said[0])
        self.assertEqual(list(found.losses()), [1, 2, 3])
        self.assert_same_losses(found.losses(), expected.losses(), 1e-10)


if not can_mount():
    print("skipped: no /dev/shm can be mounted here")
    sys.exit(77)
zr.main()
