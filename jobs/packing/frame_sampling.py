# SPDX-License-Identifier: Apache-2.0
"""Frame sampling: the frames that a family's video processor takes from a video."""

import math

import numpy as np

# Indices are multiples of (frames / sampled frames), rounded down.
QWEN2 = ("qwen2_vl", "qwen2_5_vl", "qwen2_5_omni_thinker", "qwen3_omni_moe_thinker")
MULTIPLES = ("gemma4", "internvl", "kimi_k25", "llava_onevision", *QWEN2)
# Frames of a temporal patch: the number of sampled frames is a multiple of it.
OF_A_MOMENT = dict.fromkeys(QWEN2, 2)
BY_TIME = ("glm4v", "glm4v_moe")
# GLM-4.6V: (duration in seconds up to which a rate applies, frames per second), and the longest duration that counts.
GLM46V_RATES, GLM46V_SECONDS = ((30, 6), (300, 2), (math.inf, 1)), 2400


def frames_taken(family, frames, most, per_second):
    """Returns a list of frame indices, at most `most`: all frames, or those that transformers' processor of the
    `family` (a model_type, or None) samples. `per_second`: the frame rate of the video."""
    if family == "glm46v":
        return by_duration(frames, most, per_second)
    if frames <= most:
        return list(range(frames))
    if family in MULTIPLES:
        return multiples(frames, whole_moments(family, most), family == "internvl")
    if family in BY_TIME:
        seconds = np.linspace(0, frames / per_second, most)
        taken = np.minimum(frames - 1, np.ceil(seconds * per_second))
    elif family == "smolvlm":
        taken = np.linspace(*within_ends(frames, most, per_second), most)  # rounded down
    else:
        taken = np.linspace(0, frames - 1, most).round()
    return np.unique(taken.astype(int)).tolist()


def by_duration(frames, most, per_second):
    """Returns the frames of GLM-4.6V, whose processor samples longer videos at lower rates, at any --fps."""
    duration = frames / per_second
    rate = next(rate for seconds, rate in GLM46V_RATES if duration <= seconds)
    count = max(1, min(int(min(duration, GLM46V_SECONDS) * rate), most))
    if frames < count:
        return list(range(frames))
    taken, due = [], 0
    for number in range(frames):
        if number * (1 / per_second) >= due:
            taken.append(number)
            due += 1 / rate
            if due >= int(duration):
                break
    if len(taken) != count:
        last = taken[-1] if len(taken) < count else frames - 1
        taken = np.linspace(0, last, count)
    return np.unique(np.asarray(taken).astype(int)).tolist()


def whole_moments(family, most):
    per_moment = OF_A_MOMENT.get(family, 1)
    return max(1, most // per_moment * per_moment)


def multiples(frames, count, from_the_middle):
    """Returns `count` rounded-down multiples of frames / count; `from_the_middle`: they begin half a step later.
    Multiples are rounded to fp32, as in torch."""
    step = frames / count
    first = step / 2 if from_the_middle else 0
    return (first + step * np.arange(count)).astype(np.float32).astype(int).tolist()


def within_ends(frames, most, per_second):
    """Returns the first and the last frame that SmolVLM samples: it skips the first and last second of a long video."""
    first, last = 0, frames - 1
    if frames / per_second - 2 > most * per_second:
        first, last = int(per_second), min(last, int(frames - per_second))
    return (first, last) if first < last else (0, frames - 1)
