# SPDX-License-Identifier: Apache-2.0
"""How the variants of one side take turns, here as in bench_step: a few steps each, of which the first is not timed, as
it finds caches and memory as another variant left them."""

WARMUP_STEPS = 3
STEPS_OF_TURN = 3  # timed ones


def take_turns(runs, steps, step):
    """step(run, number of the run's step, whether it is timed) until each run has `steps` timed ones. Returns how many
    steps each made."""
    turns = [(WARMUP_STEPS, 0)] + [(1, min(left, STEPS_OF_TURN)) for left in range(steps, 0, -STEPS_OF_TURN)]
    done = 0
    for untimed, timed in turns:
        for run in runs:
            for number in range(untimed + timed):
                step(run, done + number, number >= untimed)
        done += untimed + timed
    return done
