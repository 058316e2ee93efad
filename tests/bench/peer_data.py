# SPDX-License-Identifier: Apache-2.0
"""Training data of PyTorch's side of a benchmark: samples of a zea data set as the padded batches of transformers.

It imports no more than a user's script would, since its imports are part of the time to the first step.
"""

import h5py
import numpy as np
import torch


class Data:
    def __init__(self, path, mean=(0, 0, 0), std=(1, 1, 1)):
        with h5py.File(path) as file:
            self.arrays = {name: file[name][...] for name in file if isinstance(file[name], h5py.Dataset)}
        self.mean, self.std = np.asarray(mean, np.float32), np.asarray(std, np.float32)

    def __len__(self):
        return len(self.arrays["token_offsets"]) - 1

    def sample(self, number):
        a = self.arrays
        begin, end = a["token_offsets"][number : number + 2]
        pixels = []
        for item in range(*a["sample_item_offsets"][number : number + 2]):
            raw = a["item_bytes"][a["item_offsets"][item] : a["item_offsets"][item + 1]]
            pixels.append(raw.reshape(a["item_shape"][item]))
        return a["tokens"][begin:end], a["loss_mask"][begin:end], pixels

    def batch(self, numbers):
        """Padded ids, attention mask, labels, pixel values; and the number of targets."""
        samples = [self.sample(number) for number in numbers]
        longest = max(len(tokens) for tokens, _, _ in samples)
        ids = np.zeros((len(samples), longest), np.int64)
        attention, labels = np.zeros_like(ids), np.full_like(ids, -100)
        for row, (tokens, mask, _) in enumerate(samples):
            ids[row, : len(tokens)] = tokens
            attention[row, : len(tokens)] = 1
            labels[row, : len(tokens)] = np.where(mask != 0, tokens, -100)
        pixels = [image for _, _, images in samples for image in images]
        out = {"input_ids": ids, "attention_mask": attention, "labels": labels}
        if pixels:
            scaled = np.stack(pixels).astype(np.float32) / 255
            if scaled.shape[-1] == 1:
                scaled = scaled.repeat(3, -1)
            out["pixel_values"] = ((scaled - self.mean) / self.std).transpose(0, 3, 1, 2)
        targets = sum(int((mask[1:] != 0).sum()) for _, mask, _ in samples)
        return {name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in out.items()}, targets


def decayed(model, decay):
    """The groups of AdamW: matrices decay, norms and biases do not."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [[p for p in trained if (p.dim() > 1) == wide] for wide in (True, False)]
    return [{"params": groups[0], "weight_decay": decay}, {"params": groups[1], "weight_decay": 0.0}]
