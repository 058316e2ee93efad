# SPDX-License-Identifier: Apache-2.0
"""Refusals of jobs/setup.sh, which then installs nothing.

usage: check_setup.py JOBS_FOLDER
"""

import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

JOBS = Path(sys.argv[1])
PIP = """\
#!/usr/bin/env bash
echo "pip 25.0 from $(dirname "$(dirname "$(readlink -f "$0")")")/lib/python3.11/site-packages/pip (python 3.11)"
"""


class Setup(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name).resolve()
        (self.folder / "bin").mkdir()
        # All packages are there.
        (self.folder / "bin/dpkg-query").write_text("#!/usr/bin/env bash\nprintf installed\n")
        (self.folder / "bin/dpkg-query").chmod(0o755)
        shutil.copytree(JOBS, self.folder / "checkout/jobs")

    def set_up(self, *arguments):
        return subprocess.run(
            ["bash", self.folder / "checkout/jobs/setup.sh", *arguments], text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, env={"PATH": f"{self.folder}/bin:/usr/bin:/bin", "PYTHON": sys.executable})

    def test_an_argument_that_it_does_not_know(self):
        result = self.set_up("--test")
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertIn("unknown argument --test; allowed: --gpu, --tests", result.stdout)

    def test_a_link_to_the_environment_of_another_checkout(self):
        pip = self.folder / "other/.venv/bin/pip"
        pip.parent.mkdir(parents=True)
        pip.write_text(PIP)
        pip.chmod(0o755)
        (self.folder / "checkout/.venv").symlink_to(self.folder / "other/.venv")
        result = self.set_up()
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertIn(f".venv is a link to {self.folder}/other/.venv, an environment that was made elsewhere",
                      result.stdout)
        self.assertEqual(pip.read_text(), PIP)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
