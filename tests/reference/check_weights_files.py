# SPDX-License-Identifier: Apache-2.0
"""Models go from transformers into weights files and checkpoints and come back unchanged.

check_weights_files.py IMPORT CONSOLIDATE INSPECT COMPARE WRITE_CHECKPOINT
"""

import json
import shutil
import subprocess
import sys
import unittest

try:
    import h5py
    import numpy as np
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaForCausalLM
    from transformers import LlavaConfig, LlavaForConditionalGeneration
    from transformers.utils.logging import disable_progress_bar
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from folder_case import FolderCase
from tied_composites import COMPOSITES
from transformers_models import check_logits_of_experts
from weights_models import DECODERS, TOWERS, text_config

PROGRAMS = {}
OF_HEADS = {}  # by composite: whether files have one


def run(program, *arguments, code=0):
    done = subprocess.run([PROGRAMS[program], *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == code, f"{program} {arguments}: {done.returncode}: {done.stderr}"
    return done.stdout if code == 0 else done.stderr


def bits(tensor):
    return tensor.contiguous().view(torch.uint8) if tensor.dim() else tensor


def h5_tensor(dataset):
    """A dataset as a torch tensor; h5py gives bfloat16 (8 exponent, 7 mantissa bits) as float32."""
    return torch.from_numpy(dataset[...].astype(np.float32))


def make_llava(tied=False, dtype=torch.float32, tower="clip_vision_model"):
    torch.manual_seed(1)
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
    vision = AutoConfig.for_model(tower, image_size=28, patch_size=14, **sizes)
    config = {"vision_config": vision, "text_config": text_config(tied), "tie_word_embeddings": tied}
    return LlavaForConditionalGeneration(LlavaConfig(**config, image_token_index=5)).to(dtype)


def make_gpt2(tied=True, dtype=torch.float32):
    """Every value random: transformers would find zeros and ones by itself."""
    torch.manual_seed(3)
    config = GPT2Config(n_embd=32, n_layer=3, n_head=4, n_positions=24, vocab_size=96, bos_token_id=0,
                        eos_token_id=0, tie_word_embeddings=tied)
    model = GPT2LMHeadModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model.to(dtype).eval()


def with_buffers_of_old_files(tensors, positions=24, dtype=torch.float32):
    """The causal mask and its filling, which files of transformers 4.30 and before hold."""
    mask = torch.ones(positions, positions).tril().view(1, 1, positions, positions).to(dtype)
    blocks = [name.removesuffix(".ln_1.bias") for name in tensors if name.endswith(".ln_1.bias")]
    assert blocks
    buffers = {f"{block}.attn.bias": mask.clone() for block in blocks}
    return {**tensors, **buffers, **{f"{block}.attn.masked_bias": torch.tensor(-1e4) for block in blocks}}


class WeightsFiles(FolderCase):
    def saved(self, model, name="model"):
        model.save_pretrained(self.folder / name)
        return self.folder / name

    def assert_same_tensors(self, expected, found):
        self.assertEqual(sorted(expected), sorted(found))
        for name, tensor in expected.items():
            self.assertEqual(tensor.dtype, found[name].dtype, name)
            self.assertTrue(torch.equal(bits(tensor), bits(found[name])), name)

    def assert_loads(self, kind, directory, model):
        loaded, info = kind.from_pretrained(directory, output_loading_info=True)
        for fault in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            self.assertFalse(info[fault], (fault, info[fault]))
        self.assert_same_tensors(model.state_dict(), loaded.state_dict())
        check_logits_of_experts(self, model, loaded)

    def check_round_trip(self, kind, model):
        source = self.saved(model)
        weights, checkpoint = self.folder / "w.h5", self.folder / "run" / "checkpoints" / "step-00000007"
        run("import", source, weights)
        expected = load_file(source / "model.safetensors")
        with h5py.File(weights) as file:
            self.assertEqual(file.attrs["format"].decode(), "zea.weights")
            config = json.loads(file.attrs["config"])
            for key in ("generation_config", "weights_files"):  # what zea keeps of other files
                config.pop(key, None)
            self.assertEqual(config, json.loads((source / "config.json").read_text()))
            names = []
            file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
            self.assertEqual(sorted(n for n in names if not n.startswith("__files__/")), sorted(expected))
            for name, tensor in expected.items():
                self.assertTrue(torch.equal(h5_tensor(file[name]), tensor.float()), name)
            # No time stamps: the same model makes the same bytes.
            for name in ("/", *names):
                self.assertEqual(h5py.h5o.get_info(file[name].id).mtime, 0, name)

        run("consolidate", weights, f"{self.folder}/export/")
        self.assert_same_tensors(expected, load_file(self.folder / "export" / "model.safetensors"))
        self.assert_loads(kind, self.folder / "export", model)

        run("write_checkpoint", weights, checkpoint, 3)
        with h5py.File(checkpoint / "model.h5") as file:
            for name, tensor in expected.items():
                self.assertTrue(torch.equal(h5_tensor(file[name]), tensor.float()), name)
        run("consolidate", self.folder / "run", f"{self.folder}/trained/", "--companions", source)
        self.assert_same_tensors(expected, load_file(self.folder / "trained" / "model.safetensors"))
        self.assert_loads(kind, self.folder / "trained", model)
        self.assertTrue((self.folder / "trained" / "generation_config.json").exists())
        run("consolidate", checkpoint, self.folder / "again.h5")
        run("consolidate", self.folder / "again.h5", self.folder / "again.safetensors")
        self.assert_same_tensors(expected, load_file(self.folder / "again.safetensors"))
        self.assertIn("every hash is right", run("inspect", self.folder / "run", "--check"))
        self.assertIn(f"{len(expected)} tensors", run("inspect", weights, "--norms"))

    def test_llava(self):
        self.check_round_trip(LlavaForConditionalGeneration, make_llava())

    def test_llava_of_other_towers(self):
        for tower in TOWERS:
            with self.subTest(tower=tower):
                self.check_round_trip(LlavaForConditionalGeneration, make_llava(tower=tower))
            self.tearDown()
            self.setUp()

    def test_llava_tied(self):
        self.check_round_trip(LlavaForConditionalGeneration, make_llava(tied=True))

    def test_llava_bfloat16(self):
        self.check_round_trip(LlavaForConditionalGeneration, make_llava(dtype=torch.bfloat16))

    def test_llama(self):
        torch.manual_seed(2)
        self.check_round_trip(LlamaForCausalLM, LlamaForCausalLM(text_config()))

    def test_other_decoders(self):
        for family in DECODERS:
            with self.subTest(family=family):
                torch.manual_seed(2)
                model = AutoModelForCausalLM.from_config(text_config(family=family))
                self.check_round_trip(AutoModelForCausalLM, model)
            self.tearDown()
            self.setUp()

    def test_glm_as_published(self):
        """GLM-4.5 and GLM-4.5V: weights in bf16, biases of the choice of experts in fp32, and a layer of multi-token
        prediction."""
        text = AutoModelForCausalLM.from_config(text_config(family="glm4_moe"))
        for model, layers in ((text, "model.layers."), (COMPOSITES["Glm4vMoe"](), "model.language_model.layers.")):
            with self.subTest(layers):
                self.check_glm_as_published(model, layers)
            self.tearDown()
            self.setUp()

    def check_glm_as_published(self, model, layers):
        torch.manual_seed(2)
        model.config.dtype = torch.bfloat16
        source = self.saved(model.float())
        tensors = load_file(source / "model.safetensors")
        tensors |= {name.replace("layers.1.", "layers.2."): torch.randn_like(tensor) for name, tensor in tensors.items()
                    if name.startswith(f"{layers}1.")}
        wide = tensors[f"{layers}1.input_layernorm.weight"].numel()
        own = {"eh_proj": (wide, 2 * wide), "enorm": (wide,), "hnorm": (wide,), "shared_head.norm": (wide,)}
        own |= dict.fromkeys(("shared_head.head", "embed_tokens"), (70, wide))
        tensors |= {f"{layers}2.{name}.weight": torch.randn(shape) for name, shape in own.items()}
        biases = [name for name in tensors if name.endswith("e_score_correction_bias")]
        self.assertEqual(len(biases), 2)
        tensors |= {name: torch.randn_like(tensors[name]) for name in biases}
        tensors = {name: tensor if name in biases else tensor.bfloat16() for name, tensor in tensors.items()}
        save_file(tensors, source / "model.safetensors")
        json_path = source / "config.json"
        json_path.write_text(json.dumps({**json.loads(json_path.read_text()), "dtype": "bfloat16"}))
        weights, checkpoint = self.folder / "w.h5", self.folder / "run" / "checkpoints" / "step-00000007"
        run("import", source, weights)
        run("write_checkpoint", weights, checkpoint, 3)
        for out, held in (("export", weights), ("trained", self.folder / "run")):
            run("consolidate", held, f"{self.folder}/{out}/")
            self.assert_same_tensors(tensors, load_file(self.folder / out / "model.safetensors"))
            _, info = type(model).from_pretrained(self.folder / out, output_loading_info=True)
            self.assertFalse(info["missing_keys"] or info["mismatched_keys"])

    def test_gpt2(self):
        folder = self.folder
        for tied in (True, False):
            with self.subTest(tied=tied):
                self.folder = folder / f"tied-{tied}"
                model = make_gpt2(tied)
                self.check_round_trip(GPT2LMHeadModel, model)
                self.assertEqual("lm_head.weight" in load_file(self.folder / "again.safetensors"), not tied)
                for out in ("export", "trained"):
                    self.assert_same_logits(model, self.folder / out)

    def assert_same_logits(self, model, directory):
        ids = torch.arange(48).view(2, 24) * 7 % 96
        with torch.no_grad():
            expected = model(ids).logits
            found = GPT2LMHeadModel.from_pretrained(directory).eval()(ids).logits
        self.assertGreater(expected.std().item(), 0.1)
        self.assertTrue(torch.equal(expected, found))

    def test_gpt2_bfloat16(self):
        self.check_round_trip(GPT2LMHeadModel, make_gpt2(dtype=torch.bfloat16))

    def test_gpt2_names_of_old_files(self):
        """Published ones leave "transformer." out, and hold attention's masks; some hold the tied head."""
        model = make_gpt2()
        source = self.saved(model)
        expected = load_file(source / "model.safetensors")
        bare = {name.removeprefix("transformer."): tensor for name, tensor in expected.items()}
        self.assertIn("h.2.attn.c_attn.bias", bare)
        with_head = {**expected, "lm_head.weight": expected["transformer.wte.weight"].clone()}
        masks = [with_buffers_of_old_files(bare, dtype=dtype) for dtype in (torch.bool, torch.uint8, torch.int8)]
        for number, tensors in enumerate((bare, with_buffers_of_old_files(bare), *masks,
                                          with_buffers_of_old_files(expected), with_head)):
            with self.subTest(number):
                out = self.folder / f"out-{number}"
                save_file(tensors, source / "model.safetensors")
                run("import", source, self.folder / "w.h5")
                run("consolidate", self.folder / "w.h5", f"{out}/")
                self.assert_same_tensors(expected, load_file(out / "model.safetensors"))
                self.assert_loads(GPT2LMHeadModel, out, model)
                self.assert_same_logits(model, out)

    def test_gpt2_lists_all_that_is_wrong(self):
        source = self.saved(make_gpt2())
        tensors = load_file(source / "model.safetensors")
        weight = tensors["transformer.h.1.attn.c_attn.weight"]
        tensors["transformer.h.1.attn.c_attn.weight"] = weight.t().contiguous()  # as torch's Linear has it
        tensors.pop("transformer.wpe.weight")
        tensors["transformer.h.3.attn.bias_of_more"] = torch.zeros(3)
        save_file(tensors, source / "model.safetensors")
        message = run("import", source, self.folder / "w.h5", code=4)
        for part in ("missing: transformer.wpe.weight (24, 32)",
                     "unexpected: transformer.h.3.attn.bias_of_more (3)",
                     "wrong shape: transformer.h.1.attn.c_attn.weight is (96, 32); the model wants (32, 96)"):
            self.assertIn(f"\n  {part}\n", message)
        self.assertEqual(message.count("\n"), 4)

    def test_other_element_type(self):
        model = make_llava()
        source = self.saved(model)
        run("import", source, self.folder / "w.h5", "--dtype", "bfloat16")
        run("consolidate", self.folder / "w.h5", f"{self.folder}/export/")
        self.assert_loads(LlavaForConditionalGeneration, self.folder / "export", model.to(torch.bfloat16))

    def test_names_of_a_running_model_and_of_old_files(self):
        model = make_llava(tied=True)
        source = self.saved(model)
        expected = load_file(source / "model.safetensors")
        running = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        self.assertIn("lm_head.weight", running)
        old = {name.replace("vision_tower.", "vision_tower.vision_model."): tensor
               for name, tensor in expected.items()}
        old["vision_tower.vision_model.embeddings.position_ids"] = torch.arange(5)
        for tensors in (running, old):
            save_file(tensors, source / "model.safetensors")
            run("import", source, self.folder / "w.h5")
            run("consolidate", "--force", self.folder / "w.h5", self.folder / "w.safetensors")
            self.assert_same_tensors(expected, load_file(self.folder / "w.safetensors"))

    def test_buffers_that_models_compute(self):
        """Whatever their types, and also where an index names them."""
        for family, buffers in (
            ("llama", {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(6, dtype=torch.float16),
                       "model.rotary_emb.original_inv_freq": torch.ones(6),
                       "model.layers.1.self_attn.rotary_emb.cos_cached": torch.ones(1, 1, 8, 12)}),
            ("gemma3_text", {"model.embed_tokens.embed_scale": torch.tensor(6.9),
                             "model.rotary_emb_local.inv_freq": torch.ones(6),
                             "model.position_ids": torch.arange(8).to(torch.uint16)}),
        ):
            with self.subTest(family):
                source = self.saved(AutoModelForCausalLM.from_config(text_config(family=family)), family)
                expected = load_file(source / "model.safetensors")
                for named in (False, True):
                    files = {"model.safetensors": {**expected, **buffers}}
                    if named:
                        (source / "model.safetensors").unlink()
                        files = {"a.safetensors": expected, "b.safetensors": buffers}
                        names = {name: file for file, tensors in files.items() for name in tensors}
                        index = {"metadata": {}, "weight_map": names}
                        (source / "model.safetensors.index.json").write_text(json.dumps(index))
                    for file, tensors in files.items():
                        save_file(tensors, source / file)
                    run("import", source, self.folder / "w.h5")
                    run("consolidate", "--force", self.folder / "w.h5", self.folder / "w.safetensors")
                    self.assert_same_tensors(expected, load_file(self.folder / "w.safetensors"))

    def test_heads_that_are_tied_or_not(self):
        """As the composites of transformers save them: the text's key and the model's may differ."""
        for kind, make in COMPOSITES.items():
            for text, outer in ((True, False), (True, None), (False, True)):
                with self.subTest(kind, text=text, outer=outer):
                    keys = {} if outer is None else {"tie_word_embeddings": outer}
                    torch.manual_seed(1)
                    source = self.saved(make(text={"tie_word_embeddings": text}, **keys), f"{kind}-{text}-{outer}")
                    run("import", source, self.folder / "w.h5")
                    run("consolidate", "--force", self.folder / "w.h5", self.folder / "w.safetensors")
                    # Transformers 5 saves the decoder of audio models one "model." deeper than others.
                    expected = {name.replace(".model.model.", ".model."): tensor
                                for name, tensor in load_file(source / "model.safetensors").items()}
                    self.assert_same_tensors(expected, load_file(self.folder / "w.safetensors"))
                    has_head = any(name.endswith("lm_head.weight") for name in expected)
                    OF_HEADS.setdefault(kind, set()).add(has_head)
        self.assertEqual(OF_HEADS["LlavaNext"], {True, False})

    def test_an_index_that_differs_from_its_files(self):
        source = self.saved(AutoModelForCausalLM.from_config(text_config(family="qwen3_moe")))
        expected = load_file(source / "model.safetensors")
        expert = "model.layers.1.mlp.experts.2.up_proj.weight"
        (source / "model.safetensors").unlink()
        names = sorted(expected)
        files = {"a.safetensors": names[:9], "b.safetensors": names[9:]}
        for file, held in files.items():
            save_file({name: expected[name] for name in held}, source / file)
        index = source / "model.safetensors.index.json"
        named = {name: file for file, held in files.items() for name in held}
        index.write_text(json.dumps({"weight_map": {**named, "lost.weight": "a.safetensors", "x": "b.safetensors"}}))
        message = run("import", source, self.folder / "w.h5", code=4)
        lost = '"lost.weight" of a.safetensors, "x" of b.safetensors'
        self.assertIn(f"{index}: names 2 tensors that its files do not hold: {lost}; ", message)
        index.write_text(json.dumps({"weight_map": {**named, "lost.weight": "c.safetensors"}}))
        message = run("import", source, self.folder / "w.h5", code=4)
        self.assertIn(f"{source}/c.safetensors: is not there, and {index} names it", message)
        index.write_text(json.dumps({"weight_map": {name: named[name] for name in names if name != expert}}))
        done = subprocess.run([PROGRAMS["import"], source, self.folder / "w.h5"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f'note: {index}: its files hold 1 tensors that it does not name, which are read as well: '
                      f'"{expert}"', done.stderr)
        run("consolidate", self.folder / "w.h5", self.folder / "w.safetensors")
        self.assert_same_tensors(expected, load_file(self.folder / "w.safetensors"))
        for file, held in files.items():
            save_file({name: expected[name] for name in held if name != expert}, source / file)
        missing = f"with what fits:\n  missing: {expert} {(*expected[expert].shape,)}\n"
        self.assertIn(missing, run("import", source, self.folder / "w.h5", code=4))

    def test_quantized_files(self):
        """The config says that weights are quantized, or else the tensors do."""
        source = self.saved(LlamaForCausalLM(text_config()))
        config = json.loads((source / "config.json").read_text())
        tensors = load_file(source / "model.safetensors")
        name = "model.layers.0.mlp.down_proj"
        weight = tensors.pop(f"{name}.weight")
        gptq = {**tensors, f"{name}.qweight": torch.zeros(10, 48, dtype=torch.int32)}
        fp8 = {**tensors, f"{name}.weight": weight.to(torch.float8_e4m3fn), f"{name}.weight_scale": torch.ones(1)}
        int8 = {**tensors, f"{name}.weight": weight.to(torch.int8), f"{name}.SCB": torch.ones(48)}
        packed = torch.zeros(1920, 1, dtype=torch.uint8)
        nf4 = {**tensors, f"{name}.weight": packed, f"{name}.weight.absmax": torch.ones(60)}
        for method, held in (("gptq", gptq), ("awq", gptq), ("fp8", fp8), ("int8", int8), ("nf4", nf4)):
            for says in (True, False):
                with self.subTest(method, says=says):
                    said = {"quantization_config": {"quant_method": method}} if says else {}
                    (source / "config.json").write_text(json.dumps({**config, **said}))
                    save_file(held, source / "model.safetensors")
                    message = run("import", source, self.folder / "w.h5", code=4)
                    self.assertIn("quantized", message)
                    self.assertIn("dequantize()", message)
                    self.assertIn(str(source), message)

    def test_exports_in_the_type_of_the_config(self):
        """Training holds what it trains in fp32; the directory has the type that the model came in."""
        model = make_llava(dtype=torch.bfloat16)
        source = self.saved(model)
        out, weights, checkpoint = self.folder / "out", self.folder / "w.h5", self.folder / "run" / "step-00000007"
        run("import", source, weights, "--dtype", "fp32")
        run("write_checkpoint", weights, checkpoint, 2)
        for held in (weights, checkpoint):
            said = run("consolidate", held, f"{out}/")
            self.assertIn(f"{out}/ is written in bfloat16, as the model's config.json says; --dtype float32 ", said)
            self.assert_loads(LlavaForConditionalGeneration, out, model)
            shutil.rmtree(out)
        for spelled in ("fp32", "float32", "torch.float32"):
            said = run("consolidate", checkpoint, f"{out}/", "--dtype", spelled)
            self.assertIn(f"{out}/ is written in float32\n", said)
            self.assert_loads(LlavaForConditionalGeneration, out, model.to(torch.float32))
            shutil.rmtree(out)
        for name in ("t.safetensors", "t.h5"):
            run("consolidate", checkpoint, self.folder / name)
        self.assertEqual({t.dtype for t in load_file(self.folder / "t.safetensors").values()}, {torch.float32})
        run("consolidate", checkpoint, f"{out}/", "--dtype", "fp8", code=2)
        self.assertFalse(out.exists())

    def test_several_files(self):
        model = make_llava()
        source = self.saved(model)
        expected = load_file(source / "model.safetensors")
        model.save_pretrained(self.folder / "parts", max_shard_size="60KB")
        self.assertTrue((self.folder / "parts" / "model.safetensors.index.json").exists())
        run("import", self.folder / "parts", self.folder / "w.h5")
        run("consolidate", self.folder / "w.h5", self.folder / "w.safetensors")
        self.assert_same_tensors(expected, load_file(self.folder / "w.safetensors"))

    def test_writes_several_files(self):
        for kind, model in ((LlavaForConditionalGeneration, make_llava()),
                            (LlavaForConditionalGeneration, make_llava(tied=True, dtype=torch.bfloat16))):
            with self.subTest(dtype=model.dtype):
                source = self.saved(model, f"{model.dtype}")
                out = self.folder / f"out-{model.dtype}"
                weights, checkpoint = self.folder / "w.h5", self.folder / f"{model.dtype}" / "step-00000007"
                run("import", source, weights)
                run("write_checkpoint", weights, checkpoint, 3)
                run("consolidate", checkpoint, f"{out}/", "--max-shard-size", "60KB", "-j", 3)
                model.save_pretrained(self.folder / "theirs", max_shard_size="60KB")
                ours, theirs = (json.loads((folder / "model.safetensors.index.json").read_text())
                                for folder in (out, self.folder / "theirs"))
                self.assertEqual(sorted(ours["weight_map"]), sorted(theirs["weight_map"]))
                self.assertEqual(ours["metadata"]["total_size"], theirs["metadata"]["total_size"])
                files = sorted(set(ours["weight_map"].values()))
                self.assertEqual(files, [f"model-{n + 1:05d}-of-{len(files):05d}.safetensors"
                                         for n in range(len(files))])
                self.assertGreater(len(files), 2)
                for name in files:
                    tensors = load_file(out / name)
                    size = sum(tensor.nbytes for tensor in tensors.values())
                    self.assertTrue(size <= 60000 or len(tensors) == 1, (name, size))
                self.assert_loads(kind, out, model)
                self.assertIn(" 0 differences", run("compare", source, out))

    def test_lists_all_that_is_wrong(self):
        source = self.saved(make_llava())
        tensors = load_file(source / "model.safetensors")
        tensors.pop("multi_modal_projector.linear_1.bias")
        tensors["extra.weight"] = torch.zeros(3)
        tensors["multi_modal_projector.linear_2.bias"] = torch.zeros(7)
        save_file(tensors, source / "model.safetensors")
        message = run("import", source, self.folder / "w.h5", code=4)
        for part in ("missing: multi_modal_projector.linear_1.bias (48)", "unexpected: extra.weight (3)",
                     "wrong shape: multi_modal_projector.linear_2.bias is (7); the model wants (48)"):
            self.assertIn(f"\n  {part}\n", message)
        self.assertEqual(message.count("\n"), 4)
        self.assertFalse((self.folder / "w.h5").exists())

    def test_names_that_a_terminal_would_obey(self):
        source = self.saved(make_llava())
        tensors = load_file(source / "model.safetensors")
        tensors["a\x1b[2J\nb\x9b\r"] = torch.zeros(3)
        save_file(tensors, source / "model.safetensors")
        message = run("import", source, self.folder / "w.h5", code=4)
        self.assertIn("unexpected: a\\x1b[2J\nb\\xc2\\x9b\\x0d (3)\n", message)
        for program, arguments in (("inspect", [source]), ("compare", [source, source])):
            said = run(program, *arguments)
            self.assertNotIn("\x1b", said)
        # A name makes no line of its own.
        self.assertRegex(run("inspect", source), r"(?m)^a\\x1b\[2J\\x0ab\\xc2\\x9b\\x0d +\(3\) +float32$")
        self.assertIn("no\\x1b[31m: does not exist", run("inspect", self.folder / "no\x1b[31m", code=4))

    def test_values_that_are_not_finite(self):
        source = self.saved(make_llava())
        tensors = load_file(source / "model.safetensors")
        tensors["multi_modal_projector.linear_1.bias"][3] = float("nan")
        save_file(tensors, source / "model.safetensors")
        message = run("import", source, self.folder / "w.h5", code=4)
        self.assertIn("\"multi_modal_projector.linear_1.bias\" is nan at index (3)", message)
        self.assertEqual(list(self.folder.glob("w.h5*")), [])

    def test_initial_weights(self):
        model = make_llava()
        source = self.saved(model)
        for name, seed in (("a", 1), ("b", 1), ("c", 2)):
            run("import", "--random", source / "config.json", self.folder / f"{name}.h5", "--seed", seed)
            run("consolidate", self.folder / f"{name}.h5", self.folder / f"{name}.safetensors")
        a, b, c = (load_file(self.folder / f"{name}.safetensors") for name in "abc")
        self.assert_same_tensors(a, b)
        self.assertEqual(sorted(a), sorted(load_file(source / "model.safetensors")))
        embedding = "language_model.model.embed_tokens.weight"
        self.assertFalse(torch.equal(a[embedding], c[embedding]))
        self.assertAlmostEqual(a[embedding].std().item(), 0.02, delta=0.001)
        self.assertAlmostEqual(a[embedding].mean().item(), 0.0, delta=0.001)
        self.assertTrue((a["language_model.model.norm.weight"] == 1).all())
        self.assertTrue((a["vision_tower.pre_layrnorm.bias"] == 0).all())

    def test_usage(self):
        self.assertIn("tells its kind", run("consolidate", self.saved(make_llava()), self.folder / "x.pt", code=2))
        self.assertIn("paths", run("import", self.folder, code=2))
        self.assertIn("does not exist", run("inspect", self.folder / "none", code=4))
        self.assertIn("holds no complete checkpoint", run("inspect", self.folder, code=4))
        self.assertIn("no hashes to check", run("inspect", self.folder / "model", "--check", code=4))


if __name__ == "__main__":
    PROGRAMS = dict(zip(("import", "consolidate", "inspect", "compare", "write_checkpoint"), sys.argv[1:6]))
    disable_progress_bar()
    unittest.main(argv=sys.argv[:1], verbosity=0)
