# SPDX-License-Identifier: Apache-2.0
"""The head of multi-token prediction of Qwen3.5, which transformers does not have, from its layers: as in
arXiv:2412.19437, with the names of published files, where they begin with "mtp."."""

import copy

import torch
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer, Qwen3_5RMSNorm


class MtpHead(torch.nn.Module):
    """The head of a language model with the config `config`; hooks read states of `text`, its decoder."""

    def __init__(self, config, text):
        super().__init__()
        own = copy.deepcopy(config)
        own.layer_types, own.num_hidden_layers = ["full_attention"], 1
        own._attn_implementation = "sdpa"
        width, eps = config.hidden_size, config.rms_norm_eps
        self.fc = torch.nn.Linear(2 * width, width, bias=False)
        self.layers = torch.nn.ModuleList([Qwen3_5DecoderLayer(own, 0)])
        self.norm, self.pre_fc_norm_hidden, self.pre_fc_norm_embedding = (
            Qwen3_5RMSNorm(width, eps) for _ in range(3)
        )
        text.layers[0].register_forward_pre_hook(self.keep_inputs, with_kwargs=True)
        text.norm.register_forward_hook(self.keep_states)

    def keep_inputs(self, layer, args, kwargs):
        self.embedded, self.positions = args[0], kwargs["position_embeddings"]

    def keep_states(self, norm, args, states):
        self.states = states

    def forward(self):
        """Returns the states that predict the tokens after the next ones, for the model's last inputs."""
        next_inputs = self.pre_fc_norm_embedding(self.embedded[:, 1:])
        joined = torch.cat([next_inputs, self.pre_fc_norm_hidden(self.states[:, :-1])], -1)
        positions = tuple(part[:, :-1] for part in self.positions)
        return self.norm(self.layers[0](self.fc(joined), position_embeddings=positions))


def with_head(model):
    """The model with a head, whose parameters its files have, too."""
    text = getattr(model.model, "language_model", model.model)
    model.mtp = MtpHead(model.config.get_text_config(), text)
    return model


def loss_of_head(model, tokens, mask):
    """The sum of the cross entropies of tokens after the next, for the model's last inputs."""
    rows = [i for i in range(len(tokens) - 2) if mask[i + 2]]
    logits = model.lm_head(model.mtp())[0, rows]
    return torch.nn.functional.cross_entropy(logits, torch.tensor(tokens)[2:][rows], reduction="sum")
