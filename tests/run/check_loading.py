# SPDX-License-Identifier: Apache-2.0
"""A new run starts from weights of any kind, from a part of them, or from what of them fits; what
is not loaded keeps the initial values that zea-import --random draws."""

import copy
import json
import subprocess
from pathlib import Path
from unittest import mock

import zea_run as zr

SEED = 5
NORM = "language_model.model.norm.weight"


class Loading(zr.ZeaTest):
    @classmethod
    def setUpClass(cls):
        cls.made = zr.make_folder(cls.addClassCleanup)
        cls.train = zr.make_dataset(cls.made / "train.h5", zr.mixed_samples(8))
        cls.weights = zr.make_weights(cls.made / "weights.h5", seed=1)
        cls.drawn = zr.make_weights(cls.made / "drawn.h5", seed=SEED)

    def run_step(self, name, weights, *overrides, ranks=1, code=0):
        """One step at learning rate 0: what was loaded is in the checkpoint after it."""
        folder = self.folder / name
        folder.mkdir()
        deck = zr.write_deck(
            folder, weights, self.train, run=[f"seed = {SEED}"], schedule=["steps = 1"]
        )
        arguments = ["-i", deck, "-d", folder, "optim.lr=0", "optim.warmup_steps=0", *overrides]
        result = zr.run_zea(ranks, arguments, folder)
        self.assert_code(result, code)
        return result

    def loaded(self, result):
        arrays = zr.last_arrays(result.directory)
        return {name: values for (name, state), values in arrays.items() if state == "parameter"}

    def consolidate(self, *arguments):
        subprocess.run([zr.ZEA_CONSOLIDATE, *arguments], check=True, timeout=60)

    def arrays(self, path):
        arrays = zr.read_arrays(path)
        return {name: values for name, values in arrays.items() if not name.startswith("__")}

    def test_sources_of_every_kind(self):
        expected = self.arrays(self.weights)
        first = self.run_step("first", self.weights)
        run = self.folder / "first"
        checkpoint = zr.checkpoints(run)[-1]
        single, state = self.folder / "single.safetensors", self.folder / "state.h5"
        self.consolidate(self.weights, single)
        self.consolidate("--max-shard-size", "20KB", self.weights, f"{self.folder}/hf/")
        self.consolidate("--optimizer", checkpoint, state)
        config = f"model.config={self.weights.with_suffix('.json')}"
        for name, source, overrides in (
            ("single", single, [config]),
            ("directory", self.folder / "hf", []),
            ("checkpoint", checkpoint, []),
            ("run", run, []),
            ("state", state, []),
        ):
            with self.subTest(name):
                result = self.run_step(f"from-{name}", source, *overrides, ranks=1 + (name == "directory"))
                self.assert_same_arrays(expected, self.loaded(result))
                self.assertAlmostEqual(result.losses()[1], first.losses()[1], places=5)
        refused = self.run_step("without-config", single, code=4)
        self.assertIn("has no config.json; name the model's in model.config", refused.output)

    def test_read_once_and_broadcast(self):
        """Every rank then has the values that it would have read itself."""
        expected = self.arrays(self.weights)
        for name, strategy, replicas in (("ddp", "no_shard", 1), ("hybrid", "hybrid_shard", 2)):
            keys = [f"mesh.{module}.strategy={strategy}" for module in ("llm", "vision")]
            keys += [f"mesh.dp_replicate={replicas}", "schedule.steps=2", "optim.lr=0.01"]
            ends = []
            for sync in ("false", "true"):
                with self.subTest(f"{name} {sync}"):
                    sync_key = f"model.sync_module_states={sync}"
                    result = self.run_step(
                        f"{name}-{sync}", self.weights, *keys, sync_key, ranks=2
                    )
                    ends.append((zr.numbers_of_steps(result.directory), self.loaded(result)))
            self.assertEqual(ends[0][0], ends[1][0])
            self.assert_same_arrays(ends[0][1], ends[1][1])
            self.assertFalse((ends[0][1][NORM] == expected[NORM]).all())  # it did train

    def test_features_that_have_their_type_need_no_cast(self):
        """An encoder in fp32 that gives out what the language model computes in."""
        keys = ["precision.preset=bf16", "precision.vision.param_dtype=fp32"]
        keys += ["precision.vision.output_dtype=bf16", "optim.lr=0.01"]
        ends = []
        for cast in ("true", "false"):
            key = f"precision.llm.cast_forward_inputs={cast}"
            ends.append(self.run_step(cast, self.weights, *keys, key))
        self.assertEqual(ends[0].losses(), ends[1].losses())
        self.assert_same_arrays(self.loaded(ends[0]), self.loaded(ends[1]))

    def test_other_element_types(self):
        expected = self.arrays(self.weights)
        for dtype in ("bfloat16", "float16", "float64"):
            with self.subTest(dtype):
                source = self.folder / f"{dtype}.safetensors"
                self.consolidate("--dtype", dtype, self.weights, source)
                config = f"model.config={self.weights.with_suffix('.json')}"
                found = self.loaded(self.run_step(dtype, source, config))
                for name, values in expected.items():
                    if dtype == "bfloat16":  # to the nearest, ties to even
                        bits = values.view(zr.np.uint32)
                        bits = bits + 0x7FFF + ((bits >> 16) & 1) & 0xFFFF0000
                        values = bits.astype(zr.np.uint32).view(zr.np.float32)
                    if dtype == "float16":
                        values = values.astype(zr.np.float16).astype(zr.np.float32)
                    # Frozen values are in the type of the file.
                    held = found[name].astype(zr.np.float32)
                    self.assertEqual(values.tobytes(), held.tobytes(), name)

    def expected_mix(self, is_loaded):
        weights, drawn = self.arrays(self.weights), self.arrays(self.drawn)
        return {name: (weights if is_loaded(name) else drawn)[name] for name in weights}

    def test_some_modules(self):
        in_module = {
            "llm": lambda name: name.startswith("language_model."),
            "vision": lambda name: name.startswith("vision_tower."),
            "projector": lambda name: name.startswith("multi_modal_projector."),
        }
        for modules in (["vision"], ["projector", "llm"]):
            with self.subTest(modules):
                name = "-".join(modules)
                result = self.run_step(
                    name, self.weights, f"model.load_modules={json.dumps(modules)}"
                )
                expected = self.expected_mix(lambda n: any(in_module[m](n) for m in modules))
                self.assert_same_arrays(expected, self.loaded(result))
                self.assertIn(
                    f"are initial values of seed {SEED}", (self.folder / name / "log.txt").read_text()
                )

    def test_a_source_of_one_module_is_enough(self):
        text_only = self.folder / "text.h5"
        text_only.write_bytes(self.weights.read_bytes())
        with zr.h5py.File(text_only, "r+") as file:
            for name in self.arrays(self.weights):
                if not name.startswith("language_model."):
                    del file[name]
        result = self.run_step("text", text_only, 'model.load_modules=["llm"]')
        expected = self.expected_mix(lambda name: name.startswith("language_model."))
        self.assert_same_arrays(expected, self.loaded(result))
        self.assertIn("missing: vision_tower.", self.run_step("all", text_only, code=4).output)

    def test_what_fits(self):
        config = copy.deepcopy(zr.CONFIG)
        config["text_config"]["vocab_size"] = zr.VOCABULARY + 8
        larger = self.folder / "larger.json"
        larger.write_text(json.dumps(config))
        odd = self.folder / "odd.h5"
        odd.write_bytes(self.weights.read_bytes())
        with zr.h5py.File(odd, "r+") as file:
            file["extra.weight"] = zr.np.zeros(3, zr.np.float32)
            del file[NORM]
        overrides = [f"model.config={larger}"]

        refused = self.run_step("strict", odd, *overrides, code=4)
        result = self.run_step("fits", odd, *overrides, "model.strict=false")

        log = (self.folder / "fits" / "log.txt").read_text()
        for said in (refused.output, log):
            for fault in (
                f"missing: {NORM} (24)",
                "unexpected: extra.weight (3)",
                "wrong shape: language_model.lm_head.weight is (40, 24); the model wants (48, 24)",
                "wrong shape: language_model.model.embed_tokens.weight is (40, 24)",
            ):
                self.assertIn(fault, said)
        self.assertIn("model.strict = false to start with what fits", refused.output)
        subprocess.run(
            [zr.ZEA_IMPORT, "--random", larger, "--seed", str(SEED), self.folder / "drawn.h5"],
            check=True,
        )
        found, drawn = self.loaded(result), self.arrays(self.folder / "drawn.h5")
        weights, not_fitting = self.arrays(self.weights), {NORM}
        for name in drawn:
            if "lm_head" in name or "embed_tokens" in name:
                not_fitting.add(name)
        self.assert_same_arrays(
            {name: (drawn if name in not_fitting else weights)[name] for name in drawn}, found
        )

    def test_nothing_that_fits_is_refused(self):
        other = self.folder / "other.h5"
        other.write_bytes(self.weights.read_bytes())
        with zr.h5py.File(other, "r+") as file:
            for name in self.arrays(self.weights):
                file.move(name, "x." + name)
        refused = self.run_step("other", other, "model.strict=false", code=4)
        self.assertIn("none of its tensors is one of this llava model", refused.output)

    def test_a_head_that_trains_must_be_there(self):
        corpus = Path(__file__).parents[1] / "fuzz/corpus/config"
        with mock.patch.object(zr, "CONFIG", json.loads((corpus / "good_qwen3_5_text.json").read_text())):
            weights = zr.make_weights(self.folder / "hybrid.h5")
        text = zr.make_dataset(self.folder / "text.h5", [zr.text_sample(i) for i in range(8)])
        overrides = [f"data.train={text}", "model.llm.mtp_loss_coef=0.3"]
        result = self.run_step("headless", weights, *overrides, code=4)
        sentence = "has no head of multi-token prediction (mtp.*), which model.llm.mtp_loss_coef"
        self.assertIn(sentence, result.output)
        deck = zr.write_deck(self.folder, weights, text)
        planned = zr.answer("-n", "--ranks", "1", "-i", deck, *overrides)
        self.assert_code(planned, 4)
        self.assertIn(sentence, planned.output)
        self.assert_code(zr.answer("-n", "--ranks", "1", "-i", deck), 0)

    def test_initial_values(self):
        result = self.run_step(
            "drawn", "", f"model.config={self.weights.with_suffix('.json')}", ranks=2
        )
        self.assert_same_arrays(self.arrays(self.drawn), self.loaded(result))


zr.main()
