# SPDX-License-Identifier: Apache-2.0
"""A run tells what its ranks send each other: by the plan beforehand, counted in the metrics and at its end."""

import re

import zea_run as zr

ROW_TOKENS = 12  # a text sample of zea_run's
PREDICTED = re.compile(r"bytes that rank 0 sends in a step of .* by group of ranks\n  (.*)\n")
COUNTED = re.compile(r"rank 0 sent per step, by group of ranks: (.*)\n")


class Traffic(zr.ZeaTest):
    def setUp(self):
        super().setUp()
        self.deck = zr.write_inputs(self.folder, [zr.text_sample(i) for i in range(12)])

    def train(self, ranks, *overrides):
        keys = [f"data.row_tokens={ROW_TOKENS}", "data.rows_per_microbatch=4", "schedule.steps=3", "log.every=2"]
        return self.run_in(self.folder / f"ranks{ranks}", ranks, "-i", self.deck, *keys, *overrides)

    def test_full_rows_send_what_the_plan_says(self):
        result = self.train(2, "mesh.llm.tp=2")

        predicted, counted = (pattern.search(result.output).group(1) for pattern in (PREDICTED, COUNTED))
        self.assertEqual(counted, predicted)
        lines = zr.train_lines(result.directory)
        self.assertEqual(len(lines), 2)
        for line in lines:
            self.assertEqual(list(line["sent_bytes"]), ["llm.tp"])
            self.assertIn(f"llm.tp {line['sent_bytes']['llm.tp'] / 2**20:.3f} MiB", counted)

    def test_one_rank_sends_nothing_and_says_nothing(self):
        result = self.train(1)

        self.assertNotRegex(result.output, PREDICTED)
        self.assertNotRegex(result.output, COUNTED)
        self.assertNotIn("sent_bytes", zr.train_lines(result.directory)[0])


if __name__ == "__main__":
    zr.main()
