# SPDX-License-Identifier: Apache-2.0
"""zea --verify-layout: what it prints, its exit codes, what it refuses, and that it writes nothing."""

import json
from pathlib import Path
from unittest import mock

import zea_run as zr

DIFFERS = 9
LAYOUT = ["mesh.llm.tp=2", "mesh.vision.strategy=no_shard"]


class VerifyLayout(zr.ZeaTest):
    def setUp(self):
        super().setUp()
        self.deck = self.write_deck("fp64")

    def write_deck(self, preset):
        return zr.write_inputs(
            self.folder,
            zr.mixed_samples(12),
            schedule=["steps = 3"],
            precision=[f'preset = "{preset}"'],
        )

    def verify(self, *arguments, ranks=4, code=0):
        result = zr.run_zea(ranks, ["--verify-layout", "-i", self.deck, *LAYOUT, *arguments])
        self.assert_code(result, code)
        return result.output

    def verified(self, *arguments, code=0):
        output = self.verify("--json", *arguments, code=code)
        return json.loads(output[output.index("{") : output.rindex("}") + 1])

    def test_a_layout_that_equals_one_rank(self):
        before = sorted(self.folder.rglob("*"))
        output = self.verify()
        self.assertIn(
            "layout of 4 ranks against a reference of 1 (keys of [mesh] at their defaults): "
            "2 steps of 4 samples, fp64\n",
            output,
        )
        for unit in ("vision.embed", "vision.projector", "llm.layers.1", "llm.head", "loss", "gradient norm"):
            self.assertRegex(output, rf"(?m)^{unit} ")
        self.assertIn("; 0 are beyond their bounds\n", output)
        self.assertTrue(output.endswith("the layout equals the reference within bounds\n"), output)
        self.assertEqual(sorted(self.folder.rglob("*")), before)

    def test_every_precision_and_another_reference(self):
        for preset in ("fp32", "bf16"):
            self.deck = self.write_deck(preset)
            found = self.verified("--steps", "3")
            self.assertEqual((found["equal"], found["steps"], found["precision"]), (True, 3, preset))
            self.assertEqual((found["ranks"], found["reference_ranks"]), (4, 1))
        for arguments, ranks in (
            (["--against", "mesh.llm.tp=1 mesh.llm.cp=2"], 4),
            (["--against", "mesh.llm.tp=1", "--ranks", "2"], 2),
            (["--ranks", "3"], 3),
        ):
            found = self.verified("--steps", "1", *arguments)
            self.assertTrue(found["equal"], found["first"])
            self.assertEqual(found["reference_ranks"], ranks)

    def test_ranks_of_several_replicas_that_share_experts(self):
        """Each needs to know how many tokens the others have."""
        corpus = Path(__file__).parents[1] / "fuzz/corpus/config"
        config = json.loads((corpus / "good_mixtral.json").read_text())
        config["weights_files"] = {"experts": "in_out"}
        with mock.patch.object(zr, "CONFIG", config):
            weights = zr.make_weights(self.folder / "experts.h5")
        train = zr.make_dataset(self.folder / "text.h5", [zr.text_sample(i, 3 + 2 * (i % 5)) for i in range(12)])
        deck = zr.write_deck(self.folder, weights, train, precision=['preset = "fp64"'])
        over_tp = ["mesh.llm.ep=4", "mesh.llm.tp=2", "mesh.llm.etp=1"]
        muon = ["optim.kind=muon", "optim.momentum=0.95", "precision.preset=fp32"]  # which iterates in bf16
        for keys in (["mesh.llm.ep=2"], over_tp, ["mesh.llm.ep=2", *muon], [*over_tp, *muon]):
            output = zr.run_zea(4, ["--verify-layout", "-i", deck, *keys])
            self.assert_code(output, 0)
            self.assertTrue(output.output.endswith("the layout equals the reference within bounds\n"), output.output)

    def test_other_weights_on_one_rank(self):
        """Each rank reads its part of the weights, rank 1 from another file."""
        zr.make_weights(self.folder / "other.h5", seed=2)
        wrapper = self.folder / "zea"
        wrapper.write_text(
            "#!/bin/sh\n"
            f'if [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then set -- "$@" "model.weights={self.folder}/other.h5"; fi\n'
            f'exec "{zr.ZEA}" "$@"\n'
        )
        wrapper.chmod(0o755)
        with mock.patch.object(zr, "ZEA", wrapper):
            output = self.verify(code=DIFFERS)
            found = self.verified(code=DIFFERS)
        self.assertIn("\nfirst difference: step 1, the output of ", output)
        self.assertIn("\nthe layout differs from the reference\n", output)
        self.assertFalse(found["equal"])
        first = found["first"]
        self.assertEqual((first["step"], first["kind"]), (1, "outputs"))
        self.assertIn(first["unit"], ("vision.embed", "llm.embed"))
        self.assertGreater(first["difference"], first["bound"])
        self.assertGreater(sum(unit["beyond"] for unit in found["units"]), 0)

    def test_refusals(self):
        for arguments, sentence in (
            (["-n"], "take one of them"),
            (["--check-node"], "take one of them"),
            (["-r", self.folder], "--verify-layout begins with step 1 and does not resume"),
            (["-d", self.folder / "run"], "writes no run directory"),
            (["-t", "00:10:00"], "writes no run directory"),
            (["--steps", "0"], "--steps: Value 0 not in range"),
            (["--ranks", "3"], "--ranks 3 for the reference, but 2 ranks were started"),
            (["--against", "optim.lr=0.1"], "--against changes optim.lr (optim.lr = 0.1, and optim.lr = 0.005 in the"),
            (["--against", "precision.preset=fp32"], "--against changes precision.preset"),
            (["--against", "mesh.llm.tp=3"], "in the reference (--against mesh.llm.tp=3): mesh.llm.tp = 3"),
            (["run.mode=evaluate", f"data.eval={self.folder}/train.h5"], 'run.mode = "evaluate" has none'),
            (["data.train=nothing.h5"], "nothing.h5"),
        ):
            result = zr.run_zea(2, ["--verify-layout", "-i", self.deck, *arguments])
            self.assertIn(result.code, (2, 3), result.output)
            self.assertIn(sentence, result.output)
        for arguments in (["--steps", "3"], ["--against", "mesh.llm.tp=1"], ["--json"]):
            result = zr.run_zea(1, ["-i", self.deck, *arguments])
            self.assert_code(result, 2)
            self.assertIn("--verify-layout", result.output)


if __name__ == "__main__":
    zr.main()
