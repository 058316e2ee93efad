# SPDX-License-Identifier: Apache-2.0
"""The index of a folder of data sets, by which zea opens them without reading them:

    root attributes (text): format "zea.dataset.index", version "3"
    names                 strings of fixed length: the files, in the order of their samples
    bytes                 int64 (files)        size of each
    first_samples         int64 (files + 1)
    max_token             int64 (1)            largest id
    learnt_placeholders   int64 (1)            of these, placeholders of items
    targets               int64 (samples)      tokens that are learnt
    token_offsets, sample_item_offsets, item_offsets, item_shape, item_modality, item_rate,
    item_frames, item_frames_per_second (optional)
                          as in one data set of all samples
"""

import os

import h5py
import numpy as np
from dataset_writer import per_second_of, sync, write_per_second

NAME = "index.h5"
OFFSETS = ("token_offsets", "sample_item_offsets", "item_offsets")


def learnt_of(file):
    """Returns for each token whether it is learned, as a number. A sample's first token is not a target."""
    mask = file["loss_mask"][...].astype(np.int64)
    mask[file["token_offsets"][:-1]] = 0
    return mask


def placeholders_of(file):
    return [int(file.attrs[name]) for name in ("image_token", "audio_token", "video_token") if name in file.attrs]


def write_index(folder, paths):
    arrays = {name: [np.zeros(1, np.int64)] for name in OFFSETS}
    arrays |= {name: [] for name in ("item_shape", "item_modality", "item_rate", "item_frames", "targets")}
    per_second = []
    firsts, most, placeholders, ends = [0], 0, 0, dict.fromkeys(OFFSETS, 0)
    for path in paths:
        with h5py.File(path) as file:
            for name in OFFSETS:
                arrays[name].append(file[name][1:] + ends[name])  # of a part without items, none
                ends[name] += int(file[name][-1])
            for name in ("item_shape", "item_modality", "item_rate"):
                arrays[name].append(file[name][...])
            frames = file["item_frames"][...] if "item_frames" in file else np.zeros(len(file["item_rate"]), np.int32)
            arrays["item_frames"].append(frames)
            per_second.append(per_second_of(file))
            learnt, tokens = learnt_of(file), file["tokens"][...]
            arrays["targets"].append(np.add.reduceat(learnt, file["token_offsets"][:-1]))
            firsts.append(firsts[-1] + len(arrays["targets"][-1]))
            most = max(most, int(tokens.max()))
            placeholders += int(learnt[np.isin(tokens, placeholders_of(file))].sum())
    unfinished = folder / f"{NAME}.tmp"
    with h5py.File(unfinished, "w", libver=("v110", "v110")) as file:
        file.attrs["format"], file.attrs["version"] = np.bytes_("zea.dataset.index"), np.bytes_("3")
        file["names"] = np.array([path.name.encode() for path in paths], dtype="S")
        file["bytes"] = np.array([path.stat().st_size for path in paths], np.int64)
        file["first_samples"], file["max_token"] = np.array(firsts, np.int64), np.array([most], np.int64)
        file["learnt_placeholders"] = np.array([placeholders], np.int64)
        for name, found in arrays.items():
            file[name] = np.concatenate(found)
        write_per_second(file, np.concatenate(per_second), file["item_frames"][...], file["item_rate"][...])
    sync(unfinished)
    os.replace(unfinished, folder / NAME)
