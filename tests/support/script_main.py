# SPDX-License-Identifier: Apache-2.0
"""unittest's main(), but for what CTest is told: a script of which nothing ran but was skipped ends with exit code 77
(Skipped), where unittest's own says that all went well. What is skipped is printed with its reason."""

import sys
import unittest


class Result(unittest.TextTestResult):
    passed = 0

    def addSuccess(self, test):  # not called where any part of the test is skipped
        super().addSuccess(test)
        self.passed += 1


class Runner(unittest.TextTestRunner):
    resultclass = Result


def main(**options):
    """Leaves the script's arguments to the script."""
    result = unittest.main(argv=sys.argv[:1], testRunner=Runner, exit=False, **options).result
    for test, reason in result.skipped:
        print(f"skipped: {test}: {reason}")
    if not result.wasSuccessful() or not (result.passed or result.skipped):
        sys.exit(1)
    sys.exit(0 if result.passed else 77)
