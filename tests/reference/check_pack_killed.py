# SPDX-License-Identifier: Apache-2.0
"""jobs/pack.py where it is killed, and goes on; and entries whose items are nothing.

usage: check_pack_killed.py JOBS_FOLDER DUMP_DATASET
"""

import json
import signal
import struct
import subprocess
import sys
import time
import unittest

from pack_scripts import JOBS, dump, run  # isort: skip
from pack_formats_case import PNG, FormatsCase, talk, uri

sys.path.insert(0, str(JOBS))
from dataset_writer import encoded_size  # noqa: E402


class Killed(FormatsCase):
    def test_captions_of_nothing_are_faults(self):
        nothing = {"image": None, "text": "a b"}
        self.expect(self.samples(self.lines({**nothing, "images": ["a.png"]}), "--prompt", "what?"), [PNG])
        lines = self.lines(nothing, {"image": "a.png", "text": "a b"})
        self.expect(self.samples(lines, "--prompt", "what?", "--on-fault", "skip"), [PNG])
        self.assertIn("beside its text is null", self.dropped()["items"]["examples"][0])

    def test_pictures_whose_headers_tell_of_none_are_bad_items(self):
        none = PNG[:16] + struct.pack(">II", 0, 640) + PNG[24:]
        self.assertEqual(encoded_size(PNG), (4, 6))
        self.assertEqual(encoded_size(none), (0, 0))
        lines = self.lines(talk(uri(none)), talk("a.png"))
        self.expect(self.samples(lines, "--no-decode"), [none, PNG])
        self.expect(self.samples(lines, "--on-fault", "skip"), [PNG])

    def run_changed(self, change, *command):
        """With a statement before the packer, which may change packing.parts."""
        code = "import errno, os, runpy, sys; sys.path.insert(0, sys.argv[1]); import packing.parts as parts;"
        code += f"{change}; sys.argv = sys.argv[2:]; runpy.run_path(sys.argv[0], run_name='__main__')"
        words = [JOBS, JOBS / command[0], *command[1:]]
        return subprocess.run([sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True)

    def test_a_packer_killed_at_the_index_goes_on(self):
        lines = self.lines(*[talk(uri(PNG), f"what {n}?") for n in range(5)])
        command = self.command(lines, "--part-entries", 2, "--out", self.folder / "set")
        done = self.run_changed("parts.write_index = lambda *_: os._exit(9)", *command)
        self.assertEqual(done.returncode, 9, done.stderr)
        result = run(*command)
        self.assertEqual(result.returncode, 0, result.stderr)
        files = ["000000.h5", "000001.h5", "000002.h5", "index.h5"]
        self.assertEqual(sorted(path.name for path in (self.folder / "set").iterdir()), files)
        self.assertEqual(len(dump(self.folder / "set", 2)["samples"]), 5)

    def test_a_file_system_without_locks(self):
        """Only a lock that is taken means another packer."""
        command = self.command(self.lines(talk("a.png")))
        lock = "parts.fcntl.flock = lambda *_: exec('raise OSError(errno.{0}, os.strerror(errno.{0}))')"
        done = self.run_changed(lock.format("ENOSYS"), *command)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("out.h5.parts has no locks (Function not implemented): let no other packer", done.stderr)
        self.expect(dump(self.folder / "out.h5", 2)["samples"], [PNG])
        done = self.run_changed(lock.format("EWOULDBLOCK"), *command)
        self.assertEqual(done.returncode, 1)
        self.assertIn("out.h5.parts: another packer is writing there", done.stderr)

    def test_a_killed_packer_goes_on(self):
        """To the bytes of one that was not, whatever the number of processes."""
        name = self.lines(*[talk(uri(PNG), f"what {n}?") if n % 7 else {"messages": []} for n in range(4000)])
        more = ["--on-fault", "skip", "--part-entries", 100]
        self.assertEqual(len(self.samples(name, *more, "--processes", 1)), 3428)
        whole = (self.folder / "out.h5").read_bytes()
        report = json.loads((self.folder / "out.h5.report.json").read_text())
        (self.folder / "out.h5").unlink()
        parts, kept = self.folder / "out.h5.parts", {}
        command = [sys.executable, JOBS / "pack.py", *map(str, self.command(name, *more, "--processes", 2)[1:])]
        packer = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while packer.poll() is None and not (parts / "000003.json").exists():
            time.sleep(0.01)
        packer.send_signal(signal.SIGKILL)
        packer.wait()
        self.assertFalse((self.folder / "out.h5").exists())
        kept = {path.name: path.stat().st_mtime_ns for path in parts.glob("00000[0-3].h5")}
        self.assertEqual(len(kept), 4)
        time.sleep(1.1)
        self.assertEqual(self.pack(name, *more, "--processes", 2).returncode, 0)
        self.assertEqual((self.folder / "out.h5").read_bytes(), whole)
        self.assertEqual(json.loads((self.folder / "out.h5.report.json").read_text()), report)
        self.assertFalse(parts.exists())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
