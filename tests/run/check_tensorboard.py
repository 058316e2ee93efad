# SPDX-License-Identifier: Apache-2.0
"""TensorBoard reads a run's event files: the numbers of metrics.jsonl, also after kills and resumes.

Skipped where TensorBoard is missing.
"""

import logging
import sys

import zea_run as zr

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it warns of every session it purges


def flattened(prefix, value):
    if isinstance(value, dict):
        return [pair for key in value for pair in flattened(f"{prefix}/{key}", value[key])]
    return [(prefix, value)] if isinstance(value, (int, float)) else []


def numbers_of_metrics(directory):
    """{tag: {step: number}}; the last line of a step counts, as in TensorBoard's last session."""
    numbers = {}
    for line in zr.metrics(directory):
        for key in line.keys() - {"kind", "step", "seconds"}:
            for tag, value in flattened(f"{line['kind']}/{key}", line[key]):
                numbers.setdefault(tag, {})[line["step"]] = value
    return numbers


def read_events(directory):
    """TensorBoard's {tag: [(step, number)]}, as it shows them."""
    events = EventAccumulator(str(directory / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


class TensorBoard(zr.ZeaTest):
    def setUp(self):
        super().setUp()
        weights = zr.make_weights(self.folder / "weights.h5")
        train = zr.make_dataset(self.folder / "train.h5", zr.mixed_samples(12))
        held_out = zr.make_dataset(self.folder / "eval.h5", zr.mixed_samples(4))
        self.deck = zr.write_deck(
            self.folder,
            weights,
            train,
            data=[f'eval = "{held_out}"'],
            schedule=["steps = 9"],
            checkpoint=["every = 3", "keep = 0", "async = false"],
            eval=["every = 3"],
        )
        self.run_directory = self.folder / "run"

    def files(self):
        return sorted((self.run_directory / "tensorboard").iterdir())

    def check_same_numbers(self, steps=range(1, 10)):
        expected, found = numbers_of_metrics(self.run_directory), read_events(self.run_directory)
        self.assertEqual(found.keys(), expected.keys())
        for tag, values in expected.items():
            self.assertEqual([step for step, _ in found[tag]], sorted(values), tag)
            for step, value in found[tag]:
                self.assertAlmostEqual(value, values[step], delta=1e-6 * abs(values[step]), msg=tag)
        self.assertEqual([step for step, _ in found["train/loss"]], list(steps))

    def train(self, *arguments, ranks=1):
        result = zr.run_zea(ranks, ["-d", self.run_directory, *arguments], self.run_directory)
        self.assert_code(result, 0)

    def test_shows_what_metrics_hold(self):
        self.train("-i", self.deck, ranks=2)

        self.check_same_numbers()
        found = read_events(self.run_directory)
        self.assertEqual([step for step, _ in found["eval/loss"]], [3, 6, 9])
        self.assertEqual([step for step, _ in found["checkpoint/bytes"]], [3, 6, 9])
        self.assertEqual(len(self.files()), 1)

    def test_a_resumed_run_goes_on_in_a_file_of_its_own(self):
        """Steps 4 to 6 are run twice, and the first start dies within a record."""
        self.train("-i", self.deck, "schedule.steps=6")
        first = self.files()[0]
        with first.open("r+b") as file:
            file.truncate(first.stat().st_size - 7)
        half = self.run_directory / "checkpoints" / "step-00000003"

        self.train("-r", half, "schedule.steps=9")

        self.assertEqual(len(self.files()), 2)
        self.assertEqual(self.files()[0], first)
        self.check_same_numbers()

    def test_a_killed_run_shows_what_it_logged(self):
        arguments = ["-i", self.deck, "-d", self.run_directory, "schedule.steps=100000"]
        with zr.start(1, arguments, self.run_directory) as run:
            run.wait_for_step(4)
            for process in run.rank_processes():
                zr.os.kill(process, zr.signal.SIGKILL)
            run.wait()
        shown = [step for step, _ in read_events(self.run_directory)["train/loss"]]
        last = zr.last_step(self.run_directory)
        self.assertIn(shown, [list(range(1, last + 1)), list(range(1, last))])

        self.train("-r", self.run_directory, f"schedule.steps={last + 3}")

        self.check_same_numbers(range(1, last + 4))

    def test_can_be_turned_off(self):
        self.train("-i", self.deck, "schedule.steps=2", "log.tensorboard=false")
        self.assertFalse((self.run_directory / "tensorboard").exists())

    def test_evaluation_alone_writes_none(self):
        self.train("-i", self.deck, "run.mode=evaluate")
        self.assertFalse((self.run_directory / "tensorboard").exists())

    def test_says_where_it_cannot_write(self):
        self.run_directory.mkdir()
        (self.run_directory / "tensorboard").write_text("a file of that name\n")
        arguments = ["-i", self.deck, "-d", self.run_directory]
        result = zr.run_zea(1, arguments, self.run_directory)
        self.assert_code(result, 7)
        self.assertIn("run/tensorboard", result.output)


zr.main()
