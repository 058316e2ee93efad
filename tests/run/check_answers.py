# SPDX-License-Identifier: Apache-2.0
"""Answers of zea without ranks."""

import json
import os
import re
import subprocess

import zea_run as zr


class Answers(zr.ZeaTest):
    def answer(self, *arguments):
        result = zr.answer(*arguments)
        self.assert_code(result, 0)
        return result.output

    def test_help(self):
        text = self.answer("-h")
        for word in ("Usage: mpirun", "--ranks", "SIGUSR2", "requeue me", "global_batch", "[data]"):
            self.assertIn(word, text)
        self.assertEqual(text, self.answer("--help"))

    def test_a_key(self):
        text = self.answer("-h", "model.vision.train")
        self.assertIn("true or false", text)
        self.assertTrue(text.endswith("\n  [model.vision]\n  train = false\n"), text)
        self.assertIn("  train_projector = true", self.answer("--help", "model.vision"))
        refused = zr.answer("-h", "mesh.llm.tpp")
        self.assert_code(refused, 2)
        self.assertIn("zea: mesh.llm.tpp is neither a key nor a section", refused.output)
        self.assertIn("; did you mean mesh.llm.pp or mesh.llm.tp?", refused.output)

    def test_version_and_build(self):
        self.assertRegex(self.answer("--version"), r"^zea \d+\.\d+\.\d+\n$")
        build = self.answer("-c")
        for line in (
            r"commit: ([0-9a-f]{40}(-dirty)?|unknown)",
            r"C\+\+ compiler: \w+ \d+\.\d+\.\d+",
            r"C library: glibc \d+\.\d+",
            r"build type: \w+",
            r"kernels for: .*",
            r"libtorch: 2\.\d+\.\d+ in /.*/torch; its vector code here: \w+",
            r"MPI: \w+.* \(standard \d\.\d\)",
            r"HDF5: \d+\.\d+\.\d+",
            r"Kokkos: (none|\d+\.\d+\.\d+ [\w ]+)",
            r"NCCL: (none|\d+\.\d+\.\d+)",
            r"device kernels: (none.*|CUDA \d+\.\d+\.\d+ for sm_\d+.*)",
        ):
            self.assertRegex(build, rf"(?m)^{line}$")

    def test_plan(self):
        weights = zr.make_weights(self.folder / "weights.h5")
        deck = zr.write_deck(self.folder, weights, "not_there.h5")
        plans = {n: self.answer("-n", "--ranks", n, "-i", deck) for n in ("1", "512")}
        self.assertRegex(plans["512"], r"\b512\b")
        self.assertIsNone(re.search(r"\b512\b", plans["1"]))
        self.assertEqual([entry.name for entry in self.folder.glob("runs")], [])

    def write_parts(self):
        """Directories of a language model and an encoder that have a config.json alone; a deck that composes them."""
        parts = {"llm": zr.CONFIG["text_config"], "vision": zr.CONFIG["vision_config"]}
        deck = [f'[data]\ntrain = "{self.folder}/not_there.h5"\nrow_tokens = 32\n']
        for part, config in parts.items():
            (self.folder / part).mkdir()
            (self.folder / part / "config.json").write_text(json.dumps(config))
            deck.append(f'[model.{part}]\nweights = "{self.folder}/{part}"\n')
        (self.folder / "deck.toml").write_text("".join(deck))
        return self.folder / "deck.toml"

    def refusal(self, code, *arguments):
        refused = zr.answer(*arguments)
        self.assert_code(refused, code)
        self.assertNotIn("a bug of zea", refused.output)
        return refused.output

    def test_plan_of_configs_alone(self):
        deck = self.write_parts()
        plan = self.answer("-n", "--ranks", "4", "-i", deck)
        for part in ("llm", "vision"):
            said = f"{self.folder}/{part}: holds a config.json and no weights; download the rest of the model"
            self.assertIn(said, plan)
            self.assertIn(said, self.answer("-n", "-i", deck, f"model.{part}.weights={self.folder}/{part}"))
        alone = self.folder / "alone.toml"
        alone.write_text(f'[model]\nweights = "{self.folder}/llm"\n[data]\ntrain = "x.h5"\n')
        self.assertIn("note: ", self.answer("-n", "-i", alone))
        self.assertIn("/llm: holds a config.json and no weights", self.refusal(4, "-i", alone))
        (self.folder / "vision" / "pytorch_model.bin").write_bytes(b"PK")
        for flags in ([], ["-n"]):
            self.assertIn("save_pretrained()", self.refusal(4, *flags, "-i", deck))
            name = "model.vision.weights=llava-hf/llava-1.5-7b-hf"
            self.assertIn("huggingface-cli download llava-hf", self.refusal(4, *flags, "-i", deck, name))

    def test_links_that_lead_to_themselves(self):
        deck = self.write_parts()
        for name in ("config.json", "preprocessor_config.json", "model.safetensors"):
            link = self.folder / "vision" / name
            link.unlink(missing_ok=True)
            link.symlink_to(name)
            for flags in ([], ["-n"]) if name == "model.safetensors" else [["-n"]]:
                self.assertIn(f"{link}: cannot open: Too many levels", self.refusal(4, *flags, "-i", deck))
            link.unlink()
            if name == "config.json":
                link.write_text(json.dumps(zr.CONFIG["vision_config"]))

    def test_too_little_memory_is_no_bug(self):
        """Limits of address space in steps: where zea says what is missing, the code is that of memory. Where the
        memory ends inside the HDF5 library, that says what it could not create."""
        deck = zr.write_inputs(self.folder, zr.mixed_samples(4), schedule=["steps = 2"])
        told = 0
        for mib in range(660, 960, 60):
            command = ["bash", "-c", 'ulimit -v $0 && exec "$@"', str(mib << 10)]
            done = subprocess.run(
                [*command, zr.ZEA, "-i", deck, "-d", self.folder / str(mib)],
                capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=zr.LIMIT,
            )
            said = [line for line in done.stderr.splitlines() if line.startswith("zea: ")]
            if done.returncode == 0:
                break
            if said:
                self.assertEqual((done.returncode, len(said)), (7, 1), done.stderr)
                self.assertRegex(said[0], "out of memory|cannot (create|write)")
                told += 1
        self.assertGreater(told, 0)


zr.main()
