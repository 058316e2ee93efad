# SPDX-License-Identifier: Apache-2.0
"""Where the corpus is written to, the first argument of the script, and what several of its files hold."""
import pathlib
import sys

ROOT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "corpus")


def put(target, name, content):
    folder = ROOT / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


# The config of the smallest model.
LLAMA = {"model_type": "llama", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "vocab_size": 40,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
         "rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
                          "original_max_position_embeddings": 32}}
