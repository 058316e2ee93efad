# SPDX-License-Identifier: Apache-2.0
"""What a start of a Slurm job begins with, where Slurm queued the job again; without Slurm, whose programs and
zea are stood in for.

usage: check_train_chain.py JOBS_FOLDER
"""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

JOBS = Path(sys.argv[1])
# Tells where the run is; as ranks: that it was started, and perhaps writes a checkpoint before Slurm ends the job.
ZEA = """\
#!/usr/bin/env bash
if [ "$1" = -n ]; then printf '[run]\\ndirectory = "run"\\n[model]\\n'; exit; fi
echo "$*" >>starts
if [ -n "${WRITES:-}" ]; then mkdir -p "run/checkpoints/$WRITES" && touch "run/checkpoints/$WRITES/manifest.json"; fi
kill -TERM "$CHAIN"
sleep 0.2
"""
PROGRAMS = {
    "zea": ZEA,
    "mpirun": '#!/usr/bin/env bash\nexport CHAIN=$PPID\nexec "${@:3}"\n',
    "scontrol": "#!/usr/bin/env bash\necho 'JobId=7 Restarts=9 x'\n",
}


class TrainChain(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.folder = Path(self.temporary.name)
        for name, text in PROGRAMS.items():
            (self.folder / name).write_text(text)
            (self.folder / name).chmod(0o755)

    def start(self, restarts, *arguments, writes=""):
        """What zea was started with."""
        slurm = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1", "SLURM_JOB_NODELIST": "here"}
        path = f"{self.folder}:{os.environ['PATH']}"
        known = {**os.environ, **slurm, "PATH": path, "SLURM_RESTART_COUNT": str(restarts), "WRITES": writes}
        script = 'zea=$PWD/zea launcher=mpirun mpirun_options=() zea_options=(); source "$0" "$@"'
        done = subprocess.run(
            ["bash", "-c", script, JOBS / "train_chain.sh", *arguments],
            cwd=self.folder, env=known, capture_output=True, text=True, timeout=60,
        )
        self.assertIn("queued again by Slurm", done.stdout, done.stderr)
        return (self.folder / "starts").read_text().splitlines()[-1].strip()

    def write(self, name):
        (self.folder / "run/checkpoints" / name).mkdir(parents=True)
        (self.folder / "run/checkpoints" / name / "manifest.json").touch()

    def test_a_new_run(self):
        self.assertEqual(self.start(0, "deck.toml"), "-i deck.toml")
        self.assertEqual(self.start(1, "deck.toml", writes="step-00000003"), "-i deck.toml")
        self.assertEqual(self.start(2, "deck.toml"), "-r run")

    def test_a_branch_from_an_older_checkpoint(self):
        for name in ("step-00000002", "step-00000006"):
            self.write(name)
        older = ("-r", "run/checkpoints/step-00000002")
        self.assertEqual(self.start(0, *older), " ".join(older))
        self.assertEqual(self.start(1, *older, writes="step-00000004"), " ".join(older))
        # zea has set the other one aside.
        (self.folder / "run/checkpoints/step-00000006").rename(self.folder / "aside")
        self.assertEqual(self.start(2, *older, writes="step-00000006"), "-r run")
        self.assertEqual(self.start(3, *older), "-r run", "it has the number of the first newest, and is another")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
