# SPDX-License-Identifier: Apache-2.0
"""A test with a folder of its own."""

import tempfile
import unittest
from pathlib import Path


class FolderCase(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
