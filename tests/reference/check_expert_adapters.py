# SPDX-License-Identifier: Apache-2.0
"""LoRA of experts, routers and shared experts as PEFT has it: of the tensors into which transformers stacks experts
(target_parameters), and of each expert, as check_adapters.py checks that of other linears.

check_expert_adapters.py RUN_MODEL ZEA CONSOLIDATE EXTRACT_LOG_MEL JOBS [unittest arguments]
"""

import json
import sys
import unittest

try:
    import torch
    from peft import LoraConfig, PeftModel
    from safetensors.torch import load_file, save_file
    from transformers.utils.logging import disable_progress_bar

    from adapter_case import AdapterCase, ExactText, make_decoder, make_samples
    from deepseek_cases import DEEPSEEK_V3
    from family_cases import Qwen3VLMoe
    from gemma4_cases import EXPERTS as GEMMA4_EXPERTS
    from glm4v_cases import Glm4vMoe
    from kimi_k25_cases import KimiK25
    from tiled_families import InternVLOfExperts, InternVLOfMixtral
    from transformers_models import TEXT
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

EXPERTS = {"moe_intermediate_size": 12, "num_experts_per_tok": 2}
STACKS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]


class ExpertAdapters(AdapterCase):
    def check_split(self, parameters, **patterns):
        model = make_decoder("qwen3_moe", num_experts=5, **EXPERTS)
        lora = {"target_modules": ["q_proj"], "target_parameters": parameters, **patterns}
        self.check(model, ["llm"], r=3, lora_alpha=6, **lora)

    def test_stacks_of_experts_that_files_split(self):
        own = {"rank_pattern": {"layers.1.mlp.experts.down_proj": 2}, "alpha_pattern": {"mlp.gate.weight": 3}}
        self.check_split([*STACKS, "mlp.gate.weight"], **own)
        exported = json.loads((self.folder / "exported/adapter_config.json").read_text())
        self.assertIn("model.layers.1.mlp.experts.down_proj", exported["target_parameters"])

    def test_stacks_of_gates_alone(self):
        self.check_split(["gate_up_proj"])

    def test_stacks_of_the_last_linears_alone(self):
        self.check_split(["experts.down_proj"])

    def test_experts_beside_a_shared_one(self):
        shared = {"shared_expert_intermediate_size": 20, "num_experts": 4, "decoder_sparse_step": 2}
        modules = ["shared_expert.gate_proj", "shared_expert.down_proj", "shared_expert_gate"]
        model = make_decoder("qwen2_moe", **EXPERTS, **shared)
        self.check(model, ["llm"], r=3, lora_alpha=6, target_modules=modules, target_parameters=STACKS)

    def test_experts_of_mixtral_whose_blocks_have_other_names_in_files(self):
        model = make_decoder("mixtral", num_local_experts=3)
        names = [*STACKS, "mlp.gate.weight"]
        lora = {"use_rslora": True, "target_modules": ["v_proj"], "target_parameters": names}
        self.check(model, ["llm"], r=3, lora_alpha=6, **lora)

    def test_experts_of_gpt_oss_whose_weights_lie_the_other_way(self):
        model = make_decoder("gpt_oss", num_local_experts=4, num_experts_per_tok=2, head_dim=8)
        names = [*STACKS, "mlp.router.weight"]
        self.check(model, ["llm"], r=3, lora_alpha=6, target_modules=[], target_parameters=names)

    def test_experts_of_gemma4_beside_mlps(self):
        """Keys are values, too, so adapters of k_proj also change values. Routers have an nn.Linear."""
        modules = ["k_proj", "o_proj", "gate_proj", "mlp.down_proj", "router.proj"]
        lora = {"target_modules": modules, "target_parameters": ["experts.gate_up_proj", "experts.down_proj"]}
        self.check(make_decoder("gemma4_text", **GEMMA4_EXPERTS), ["llm"], ExactText, r=3, lora_alpha=6, **lora)
        exported = json.loads((self.folder / "exported/adapter_config.json").read_text())
        self.assertIn("model.layers.1.router.proj", exported["target_modules"])

    def test_the_router_of_gemma4_as_a_parameter(self):
        lora = {"target_modules": ["q_proj"], "target_parameters": ["router.proj.weight", "experts.down_proj"]}
        self.check(make_decoder("gemma4_text", **GEMMA4_EXPERTS), ["llm"], ExactText, r=3, lora_alpha=6, **lora)

    def test_experts_of_deepseek_v3_in_groups(self):
        model = make_decoder("deepseek_v3", **DEEPSEEK_V3)
        modules, names = ["kv_a_proj_with_mqa", "q_b_proj"], [*STACKS, "mlp.gate.weight"]
        self.check(model, ["llm"], r=3, lora_alpha=6, target_modules=modules, target_parameters=names)

    def check_composite(self, family, modules=(), parameters=STACKS):
        lora = {"target_modules": [*modules], "target_parameters": parameters}
        frozen = ["model.vision.train=false", "model.vision.train_projector=false"]
        self.check(family.model(), ["llm"], family, frozen, r=3, lora_alpha=6, **lora)

    def test_stacked_experts_with_images(self):
        self.check_composite(Qwen3VLMoe)

    def test_experts_of_internvl_that_files_split(self):
        self.check_composite(InternVLOfExperts, ["self_attn.k_proj"], [*STACKS, "mlp.gate.weight"])

    def test_experts_of_a_mixtral_in_internvl(self):
        self.check_composite(InternVLOfMixtral, [], [*STACKS, "mlp.gate.weight"])

    def test_experts_of_glm4v_that_files_split(self):
        self.check_composite(Glm4vMoe, ["o_proj"], [*STACKS, "mlp.gate.weight"])

    def test_experts_of_kimi_k25_that_files_split(self):
        self.check_composite(KimiK25, ["kv_b_proj", "shared_experts.down_proj"])

    def test_adapters_of_each_expert(self):
        """PEFT wrote them when transformers had a linear of each expert. It reads them as adapters of stacks, whose
        matrices have those of gate and up side by side, and on the diagonal."""
        experts, rank, hidden, inner = 5, 3, TEXT["hidden_size"], EXPERTS["moe_intermediate_size"]
        model = make_decoder("qwen3_moe", num_experts=experts, **EXPERTS)
        samples = make_samples(False)
        modules = ["q_proj", "gate_proj", "up_proj", "down_proj"]
        self.save(model, LoraConfig(r=rank, lora_alpha=6, target_modules=["q_proj"]), samples)
        base = type(model).from_pretrained(self.folder / "base")
        path, config = self.folder / "adapter/adapter_model.safetensors", self.folder / "adapter/adapter_config.json"
        tensors = load_file(path)
        for layer in range(TEXT["num_hidden_layers"]):
            for expert in range(experts):
                for linear in modules[1:]:
                    name = f"base_model.model.model.layers.{layer}.mlp.experts.{expert}.{linear}"
                    out, into = (hidden, inner) if linear == "down_proj" else (inner, hidden)
                    tensors[f"{name}.lora_A.weight"] = torch.randn(rank, into) / 4
                    tensors[f"{name}.lora_B.weight"] = torch.randn(out, rank) / 4
        save_file(tensors, path)
        config.write_text(json.dumps({**json.loads(config.read_text()), "target_modules": modules}))
        adapted = PeftModel.from_pretrained(base, self.folder / "adapter", is_trainable=True).eval()

        def name_of(name):
            return name.removeprefix("base_model.model.").replace(".default", "")

        def in_files(gradients, _):
            found = {}
            for name, gradient in gradients.items():
                block, is_of_experts, of = name.partition(".mlp.experts.")
                if not is_of_experts:
                    found[name.replace(".base_layer", "")] = gradient
                    continue
                linears = modules[1:3] if of.startswith("base_layer.") else modules[3:]
                is_down, ranks = "lora_A." in of, rank * len(linears)
                shape = (experts, ranks, -1) if is_down else (-1, ranks, experts)
                stacked = gradient.reshape(shape) if is_down else gradient.reshape(shape).transpose(2, 0, 1)
                for expert, matrix in enumerate(stacked):
                    for place, linear in enumerate(linears):
                        rows = matrix.shape[0] // len(linears)
                        part = matrix[place * rows : (place + 1) * rows]
                        if not is_down:
                            part = part[:, place * rank : (place + 1) * rank]
                        matrix_name = "lora_A" if is_down else "lora_B"
                        found[f"{block}.mlp.experts.{expert}.{linear}.{matrix_name}.weight"] = part
            return found

        self.check_saved(adapted, ["llm"], samples, name_of, in_files=in_files)
        incomplete = dict(tensors)
        del incomplete["base_model.model.model.layers.1.mlp.experts.2.up_proj.lora_B.weight"]
        save_file(incomplete, path)
        self.assertIn("has no model.layers.1.mlp.experts.2.up_proj.lora_B.weight", self.refusal("llm"))


if __name__ == "__main__":
    disable_progress_bar()
    torch.set_num_threads(1)
    unittest.main(argv=[sys.argv[0], *sys.argv[6:]])
