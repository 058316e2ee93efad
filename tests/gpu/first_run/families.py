# SPDX-License-Identifier: Apache-2.0
"""Small models of four kinds with data of their own: what is trained on GPUs and on the host and must give the same."""

import json
from dataclasses import dataclass
from pathlib import Path

from machine import PROJECT
from setting import BATCH, STEPS, write_deck


@dataclass
class Family:
    name: str
    config: dict
    encoders: tuple  # names of its modules that read items
    can_tp: bool = True


def families(quick):
    def config(name):
        return json.loads((PROJECT / "inputs" / name).read_text())

    llava = config("fashion_captions_2m.json")
    if quick:
        llava["text_config"] |= {"num_hidden_layers": 2, "hidden_size": 96, "intermediate_size": 96, "head_dim": 16}
        return [Family("Llava", llava, ("vision",))]
    return [
        Family("Llava", llava, ("vision",)),
        Family("Llama", {**llava["text_config"], "architectures": ["LlamaForCausalLM"]}, ()),
        Family("GPT-2", config("gpt2_2m.json"), (), can_tp=False),
        Family("spoken", config("spoken_fashion_2m.json"), ("vision", "audio")),
    ]


def samples_of(config, count):
    """(tokens, loss mask, items): random words, and items of what the model sees and hears."""
    import numpy as np
    from dataset_writer import Clip

    random = np.random.default_rng(5)
    text = config.get("text_config", config)
    first = max(config.get("image_token_index", 0), config.get("audio_token_index", 0)) + 1
    for number in range(count):
        words = random.integers(first, text["vocab_size"], size=int(random.integers(8, 40))).tolist()
        tokens, items = words[:2], []
        if vision := config.get("vision_config"):
            features = (vision["image_size"] // vision["patch_size"]) ** 2
            for _ in range(number % 3):
                tokens += [config["image_token_index"]] * features
                items.append(random.integers(0, 256, size=(vision["image_size"],) * 2 + (3,), dtype=np.uint8))
        if (audio := config.get("audio_config")) and number % 2:
            tokens += [config["audio_token_index"]] * audio["max_source_positions"]
            items.append(Clip(random.integers(-9000, 9000, size=16000, dtype=np.int16), 16000))
        yield tokens + words[2:], [0] * len(tokens) + [1] * (len(words) - 2), items


def prepare(setting, family):
    """Weights, data and deck in a folder of the family's name; the deck."""
    from dataset_writer import DatasetWriter

    folder = setting.folder / family.name
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(family.config))
    importer = setting.tree.tool("zea-import")
    made = setting.run([importer, "--random", folder / "config.json", folder / "weights.h5"], 120)
    if not made.ok:
        raise RuntimeError(made.tail())
    tokens = {"audio_token": family.config.get("audio_token_index", -1)}
    with DatasetWriter(folder / "data.h5", family.config.get("image_token_index", -1), **tokens) as writer:
        for sample in samples_of(family.config, BATCH * STEPS):
            writer.add(*sample)
    return write_deck(folder, f'weights = "{folder}/weights.h5"', folder / "data.h5", 1024)


def layouts(family, ranks):
    """Overrides by name: all that `ranks` can do with the family."""
    modules = ("llm", *family.encoders)

    def strategy(name):
        return [f"mesh.{module}.strategy={name}" for module in modules]

    found = {name: strategy(name) for name in ("no_shard", "full_shard", "shard_grad_op")}
    if ranks == 1:
        return found
    for name in ("hybrid_shard", "hybrid_shard_zero2"):
        found[name] = [*strategy(name), f"mesh.dp_replicate={2 - ranks % 2}"]
    if family.can_tp and ranks == 2:
        found["tp 2"] = ["mesh.llm.tp=2"]
    elif family.can_tp and ranks % 2 == 0:
        found["tp 2, fully sharded"] = ["mesh.llm.tp=2", *strategy("full_shard")]
    found["cp 2"] = ["mesh.llm.cp=2"]
    found["cp 2, ring"] = ["mesh.llm.cp=2", "mesh.llm.cp_mode=ring"]
    found["cp 2, ulysses"] = ["mesh.llm.cp=2", "mesh.llm.cp_mode=ulysses"]
    found["pp 2"] = ["mesh.llm.pp=2"]
    if family.encoders and ranks % ranks_apart(family) == 0:
        found[APART] = apart(family)
    return found


APART = "modules on ranks of their own"


def ranks_apart(family):
    """Returns the ranks of a replica with every module on separate ranks."""
    return 1 + len(family.encoders)


def apart(family):
    return ["mesh.placement=disjoint", *(f"mesh.{encoder}.encoder_dp=1" for encoder in family.encoders)]
