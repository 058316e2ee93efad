# SPDX-License-Identifier: Apache-2.0
"""A layout that zea --plan chooses within a memory limit trains in cgroups that limit each rank to it, plus the memory
of zea itself; a layout that needs more is killed. Skipped where memory cgroups cannot be made."""

import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from unittest import mock

import zea_run as zr

HARDWARE = Path(__file__).parents[2] / "inputs/hardware/epyc_core.toml"
MIB = 1 << 20
CONFIG = {"model_type": "llama", "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 8,
          "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32, "vocab_size": zr.VOCABULARY,
          "rms_norm_eps": 1e-6, "max_position_embeddings": 4096, "tie_word_embeddings": False}  # fmt: skip
LIMIT_MIB = 160
ROW = 1536  # tokens


def memory_cgroup():
    """Returns the folder of this process's memory cgroup, and the names of its limit and peak files; or None."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            return Path(f"/sys/fs/cgroup/memory{path}"), "memory.limit_in_bytes", "memory.max_usage_in_bytes"
        own = Path(f"/sys/fs/cgroup{path}")
        if controllers == "" and "memory" in (own / "cgroup.subtree_control").read_text().split():
            return own, "memory.max", "memory.peak"
    return None


class Groups:
    """A memory cgroup for each of two ranks. `limit`: bytes (None: unlimited)."""

    def __init__(self, limit):
        parent, self.limit_file, self.peak_file = memory_cgroup()
        self.folders = [parent / f"zea-test-{os.getpid()}-{rank}" for rank in range(2)]
        self.limit = limit

    def __enter__(self):
        for folder in self.folders:
            folder.mkdir()
            if self.limit:
                (folder / self.limit_file).write_text(str(self.limit))
        return self

    def __exit__(self, *_):
        for folder in self.folders:
            with contextlib.suppress(OSError):
                folder.rmdir()

    def peak(self):
        return max(int((folder / self.peak_file).read_text()) for folder in self.folders)


class MemoryLimit(zr.ZeaTest):
    def setUp(self):
        super().setUp()
        config = self.folder / "config.json"
        config.write_text(json.dumps(CONFIG))
        sample = ([i % 20 + 5 for i in range(ROW)], [0] + [1] * (ROW - 1), [])
        data = zr.make_dataset(self.folder / "train.h5", [sample] * 4)
        self.deck = self.folder / "deck.toml"
        self.deck.write_text(
            f'[model]\nconfig = "{config}"\nweights = ""\n[data]\ntrain = "{data}"\nrow_tokens = {ROW}\n'
            "[schedule]\nsteps = 2\nglobal_batch = 2\n[checkpoint]\nevery = 0\n"
        )

    def layouts(self, memory, *keys):
        found = zr.answer("--plan", "--json", "--ranks", "2", "--hardware", HARDWARE, "--memory", f"{memory}MiB",
                          "--out", self.folder / "decks", "-i", self.deck, *keys)  # fmt: skip
        self.assert_code(found, 0)
        return json.loads(found.output)["layouts"]

    def train(self, name, deck, limit=None):
        """Returns the run, and the largest peak of a rank's cgroup in bytes."""
        with Groups(limit) as groups:
            join = self.folder / "join.sh"
            join.write_text(
                '#!/bin/bash\ncase $OMPI_COMM_WORLD_RANK in\n'
                + "".join(f"{rank}) echo $$ > {folder}/cgroup.procs;;\n" for rank, folder in enumerate(groups.folders))
                + f'esac\nexec {zr.ZEA} "$@"\n'
            )
            join.chmod(0o755)
            with mock.patch.object(zr, "ZEA", join):
                run = zr.run_zea(2, ["-i", deck, "-d", self.folder / name], self.folder / name)
            return run, groups.peak()

    def test_chosen_layouts_stay_within_a_limit(self):
        much = self.layouts(16 * 1024)[0]
        (self.folder / "decks/layout_01.toml").rename(self.folder / "much.toml")
        run, most = self.train("much", self.folder / "much.toml")
        self.assert_code(run, 0)
        self.assertGreater(much["memory_bytes"], 1.3 * LIMIT_MIB * MIB)
        zea_itself = max(0, most - much["memory_bytes"])

        chosen = self.layouts(LIMIT_MIB)
        limit = LIMIT_MIB * MIB + zea_itself
        for number, layout in list(enumerate(chosen, 1))[:2]:
            self.assertLessEqual(layout["memory_bytes"], LIMIT_MIB * MIB)
            run, _ = self.train(f"chosen {number}", self.folder / f"decks/layout_{number:02}.toml", limit)
            self.assert_code(run, 0)
            self.assertEqual(list(run.losses()), [1, 2])
        killed, _ = self.train("killed", self.folder / "much.toml", limit)
        self.assertNotEqual(killed.code, 0, "the limit has no effect")
        self.assertRegex(killed.output, f"signal {signal.SIGKILL.value}|[Kk]illed")


def can_limit():
    try:
        with Groups(1 << 30):
            return True
    except (OSError, TypeError):
        return False


if not can_limit():
    print("skipped: no memory cgroup can be made here")
    sys.exit(77)
zr.main()
