# SPDX-License-Identifier: Apache-2.0
"""The start of a Slurm job after Slurm requeued it, and the job's actions after zea has ended; without Slurm: this test
replaces Slurm's programs and zea.

usage: check_train_chain.py JOBS_FOLDER
"""

import os
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

JOBS = Path(sys.argv[1])
SCONTROL = """\
#!/usr/bin/env bash
if [ "$1" = requeue ]; then touch requeued; else echo "JobId=7 Restarts=9 PreemptTime=${PREEMPTED:-None} x"; fi
"""
# Prints the run's location; as ranks: prints that it was started, and perhaps sets a checkpoint aside, writes another,
# waits for the STOP of a job whose time is over, takes it and logs that it found one, before it ends with a code, or
# the job is killed that was just asked to leave, or Slurm ends the job.
ZEA = """\
#!/usr/bin/env bash
if [ "$1" = -n ]; then printf '[run]\\ndirectory = "run"\\n[model]\\n'; exit; fi
echo "$*" >>starts
if [ -n "${ASIDE:-}" ]; then mv "run/checkpoints/$ASIDE" "run/checkpoints/$ASIDE.replaced-1"; fi
if [ -n "${WRITES:-}" ]; then mkdir -p "run/checkpoints/$WRITES" && touch "run/checkpoints/$WRITES/manifest.json"; fi
if [ -n "${SIGNALLED:-}" ]; then
  kill -USR2 "$CHAIN"
  until [ -e run/STOP ]; do sleep 0.01; done
fi
if [ -n "${TAKES:-}" ]; then rm run/STOP; fi
if [ -n "${FINDS:-}" ]; then echo "info found the file STOP in run: leaving" >>run/log.txt; fi
if [ -n "${ENDS:-}" ]; then exit "$ENDS"; fi
if [ -n "${KILLED:-}" ]; then
  kill -USR2 "$CHAIN"
  until [ -e run/STOP ]; do sleep 0.01; done
  kill -KILL "$CHAIN"
  exit
fi
kill -TERM "$CHAIN"
sleep 0.2
"""
PROGRAMS = {
    "zea": ZEA,
    "mpirun": '#!/usr/bin/env bash\nexport CHAIN=$PPID\nexec "${@:3}"\n',
    "scontrol": SCONTROL,
}


class TrainChain(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.folder = Path(self.temporary.name)
        for name, text in PROGRAMS.items():
            self.write_program(name, text)

    def write_program(self, name, text):
        (self.folder / name).write_text(text)
        (self.folder / name).chmod(0o755)

    def run_job(self, restarts, *arguments, **more):
        """A start of the job, with variables for the stand-ins."""
        slurm = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1", "SLURM_JOB_NODELIST": "here"}
        path = f"{self.folder}:{os.environ['PATH']}"
        known = {**os.environ, **slurm, "PATH": path, "SLURM_RESTART_COUNT": str(restarts), **more}
        script = "zea=${zea:-$PWD/zea} launcher=mpirun mpirun_options=() zea_options=() most_fast_starts=3"
        script += ' shortest_start_seconds=300 check_nodes=${CHECKS:-no}; source "$0" "$@"'
        return subprocess.run(
            ["bash", "-c", script, JOBS / "train_chain.sh", *arguments],
            cwd=self.folder, env=known, capture_output=True, text=True, timeout=60,
        )

    def start(self, restarts, *arguments, writes=""):
        """Returns the arguments of zea's start, if Slurm ends the job."""
        done = self.run_job(restarts, *arguments, WRITES=writes)
        self.assertIn("queued again by Slurm", done.stdout, done.stderr)
        return self.starts()[-1]

    def starts(self):
        return [line.strip() for line in (self.folder / "starts").read_text().splitlines()]

    def assert_ends(self, done, code, sentence, is_queued_again=False):
        """Checks the end of a start: there is a record for the next one if the job was queued again."""
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertIn(sentence, done.stdout)
        for name in ("requeued", ".zea-job-7"):
            self.assertEqual((self.folder / name).exists(), is_queued_again, name)

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

    def test_a_damaged_checkpoint_is_set_aside(self):
        """A checkpoint written afterwards is new, though its step is lower; earlier ones are not."""
        for name in ("step-00000400", "step-00000800"):
            self.write(name)
        leaves = {"ENDS": "75", "ASIDE": "step-00000800"}
        more = ("-r", "run", "-t", "1:00")
        done = self.run_job(0, *more, WRITES="step-00000600", **leaves)
        self.assert_ends(done, 75, "zea left after step 600; queued again", is_queued_again=True)
        (self.folder / "requeued").unlink()
        done = self.run_job(1, *more, **{**leaves, "ASIDE": "step-00000600"})
        self.assert_ends(done, 75, "no checkpoint is newer than when this start began")

    def test_preempted_with_a_grace_time(self):
        """Slurm does not tell the script; the job is queued again whatever its ranks end with, unless they are done."""
        self.assert_ends(self.run_job(0, "deck.toml", ENDS="205"), 205, "the chain ends")
        preempted = {"PREEMPTED": "2026-01-02T03:04:05", "WRITES": "step-00000003"}
        said = "preempted (exit code {}); queued again, to go on with what is in run"
        self.assert_ends(self.run_job(0, "deck.toml", ENDS="205", **preempted), 75, said.format(205), True)
        for restarts in range(1, 5):  # short starts, without a newer checkpoint
            done = self.run_job(restarts, "deck.toml", ENDS="75", **preempted)
            self.assert_ends(done, 75, said.format(75), True)
            self.assertEqual(self.starts()[-1], "-r run")
        done = self.run_job(5, "deck.toml", ENDS="143", CHECKS="yes", **preempted)
        self.assert_ends(done, 75, said.format(143), True)
        self.assertEqual(self.starts()[-1], "--check-node -r run")
        (self.folder / "requeued").unlink()
        self.assert_ends(self.run_job(6, "deck.toml", ENDS="0", **preempted), 0, "done")

    def test_a_stop_while_it_is_preempted(self):
        """zea has taken this STOP file. One of an earlier start does not count."""
        found = {"FINDS": "yes", "WRITES": "step-00000003"}
        preempted = {"PREEMPTED": "2026-01-02T03:04:05"}
        for code in ("75", "205"):
            done = self.run_job(0, "deck.toml", ENDS=code, **found, **preempted)
            self.assert_ends(done, 75, "asked to leave, by a STOP file")
        done = self.run_job(0, "-r", "run", ENDS="75", **preempted)
        self.assert_ends(done, 75, "preempted (exit code 75); queued again", is_queued_again=True)

    def test_a_stop_that_zea_took_when_slurm_ended_the_job(self):
        """The next start ends by it."""
        done = self.run_job(0, "deck.toml", FINDS="yes", WRITES="step-00000003")
        self.assertIn("queued again by Slurm", done.stdout, done.stderr)
        self.assertFalse((self.folder / "run/STOP").exists(), "by which another job would end")
        self.assert_ends(self.run_job(1, "deck.toml"), 75, "asked to leave, by a STOP file")
        self.assertEqual(len(self.starts()), 1)

    def test_a_stop_that_zea_took_before_the_time_was_over(self):
        """The script's own comes behind it, and is left."""
        found = {"FINDS": "yes", "WRITES": "step-00000003", "SIGNALLED": "yes"}
        done = self.run_job(0, "deck.toml", ENDS="75", **found)
        self.assert_ends(done, 75, "asked to leave, by a STOP file")
        self.assertFalse((self.folder / "run/STOP").exists())
        done = self.run_job(0, "-r", "run", ENDS="75", TAKES="yes", **{**found, "WRITES": "step-00000004"})
        self.assert_ends(done, 75, "zea left after step 4; queued again", is_queued_again=True)

    def test_a_stop_of_a_run_with_a_wall_limit(self):
        """Whose time was not over."""
        found = {"FINDS": "yes", "WRITES": "step-00000003"}
        done = self.run_job(0, "deck.toml", "-t", "1:00", ENDS="75", **found)
        self.assert_ends(done, 75, "asked to leave, by a STOP file")

    def test_requests_while_the_job_waits(self):
        self.start(0, "deck.toml", writes="step-00000003")
        (self.folder / "run/SAVE").touch()
        self.assertEqual(self.start(1, "deck.toml"), "-r run")
        self.assertTrue((self.folder / "run/SAVE").exists(), "for zea to take")
        (self.folder / "run/STOP").touch()
        done = self.run_job(2, "deck.toml")
        self.assert_ends(done, 75, "by a STOP file or a signal from outside the job: not queued again; go on with")
        self.assertEqual(len(self.starts()), 2)
        self.assertFalse((self.folder / "run/STOP").exists(), "it has been heeded")

    def test_a_request_of_a_start_that_was_killed(self):
        """Is the script's own, and of that start alone."""
        self.assertEqual(self.run_job(0, "deck.toml", KILLED="yes").returncode, -signal.SIGKILL)
        self.assertTrue((self.folder / "run/STOP").exists())
        self.assertEqual(self.start(1, "deck.toml", writes="step-00000003"), "-i deck.toml")
        self.assertFalse((self.folder / "run/STOP").exists())
        (self.folder / "run/STOP").touch()
        self.assert_ends(self.run_job(2, "deck.toml"), 75, "asked to leave, by a STOP file")

    def test_a_rank_that_was_killed(self):
        """As Slurm and the kernel kill whoever takes too much memory."""
        self.assert_ends(self.run_job(0, "deck.toml", ENDS="137"), 137, "perhaps the job's memory was too small")

    def test_a_program_with_arguments(self):
        self.write_program("run_in", '#!/usr/bin/env bash\nshift 2\nexec "$PWD/zea" "$@"\n')
        done = self.run_job(0, "deck.toml", zea="run_in --bind x.sif", ENDS="0")
        self.assert_ends(done, 0, "done")
        self.assertEqual(self.starts(), ["-i deck.toml"])

    def test_a_job_without_a_number_of_ranks(self):
        done = self.run_job(0, "deck.toml", SLURM_NTASKS="")
        self.assert_ends(done, 2, "Slurm gives no number of ranks (SLURM_NTASKS): add --ntasks-per-node")

    def submit_elsewhere(self, script, command):
        """A batch script that was copied to a spool, in a folder that is not zea's; Slurm knows its command."""
        self.write_program("scontrol", f"#!/usr/bin/env bash\necho 'JobId=7 Command={command} WorkDir=/'\n")
        slurm = {"SLURM_JOB_ID": "7", "SLURM_SUBMIT_DIR": str(self.folder), "SLURM_JOB_NODELIST": "here"}
        known = {**os.environ, **slurm, "PATH": f"{self.folder}:{os.environ['PATH']}"}
        known.pop("SLURM_NTASKS", None)
        spooled = self.folder / "slurm_script"
        spooled.write_text((JOBS / script).read_text())
        command = ["bash", spooled, "deck.toml"]
        return subprocess.run(command, cwd=self.folder, env=known, capture_output=True, text=True, timeout=60)

    def test_jobs_that_are_submitted_elsewhere(self):
        for script in sorted(path.name for path in JOBS.glob("*.sbatch")):
            done = self.submit_elsewhere(script, JOBS / script)
            self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
            self.assertIn("Slurm gives no number of ranks", done.stdout, script)  # so it found train_chain.sh
            done = self.submit_elsewhere(script, self.folder / "spool" / script)
            self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
            self.assertIn("submit this in zea's folder, or set ZEA_FOLDER to it", done.stderr, script)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
