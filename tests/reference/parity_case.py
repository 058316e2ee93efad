# SPDX-License-Identifier: Apache-2.0
"""The common part of comparisons of whole models with transformers. Cases that differ only in their deck, ranks, or
frozen modules have one model, one data set and one reference: only zea runs again."""

import json
import tempfile
import unittest
from pathlib import Path

from folder_case import FolderCase
from transformers_models import ModelRuns, read_outputs

# Keys of a case that only change zea's run.
OF_A_RUN = ("deck", "ranks", "frozen", "trained")


class ParityCase(FolderCase):
    """A program sets `model_runs`, and makes (expected outputs, deck) of a case in the folder that is given."""

    model_runs: ModelRuns
    prepared = {}

    def shared(self, case, make, *names):
        """Returns the result of `make(folder)` for the first of the cases that are alike, and the folder that it
        filled."""
        alike = {key: value for key, value in case.items() if key not in OF_A_RUN}
        key = json.dumps([*names, alike], sort_keys=True)
        if key not in self.prepared:
            temporary = tempfile.TemporaryDirectory()
            unittest.addModuleCleanup(temporary.cleanup)
            self.prepared[key] = Path(temporary.name), make(Path(temporary.name))
        return self.prepared[key]

    def run_model(self, case, deck, *keys):
        """Returns zea's results for a case, whose keys follow `keys`."""
        out = self.folder / "out.h5"
        out.unlink(missing_ok=True)
        self.model_runs.run(case.get("ranks", 1), deck, out, *keys, *case.get("deck", []))
        return read_outputs(out)


def trained_of(outputs, prefixes):
    """Outputs without the gradients of parameters whose names begin so: those of frozen modules."""
    loss, logits, gradients = outputs
    return loss, logits, {name: g for name, g in gradients.items() if not name.startswith(tuple(prefixes))}
