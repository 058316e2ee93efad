# SPDX-License-Identifier: Apache-2.0
"""Every cell of the table of families in inputs/README.md has the cases that it claims, and every family that is
read has a row.

check_family_table.py PROJECT
"""

import json
import re
import sys
from pathlib import Path

PROJECT = Path(sys.argv[1])
sys.argv = [sys.argv[0], *[""] * 6]  # of the tests whose cases these are
sys.path.insert(0, str(PROJECT / "jobs"))
try:
    import check_weights_files
    import test_family_parity
    import test_spoken_parity
    from family_table import cases
    from deepseek_cases import DEEPSEEK_CASES
    from gemma4_cases import GEMMA4_CASES
    from glm_cases import GLM_CASES
    from gpt_oss_cases import GPT_OSS_CASES
    from hybrid_cases import HYBRID_CASES, HYBRIDS
    from parity_cases import CASES
    from spoken_cases import CASES as SPOKEN_CASES
    from tower_cases import TOWER_CASES
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

AXES = ("tp", "cp", "pp")
TOWERS = {
    "llava of CLIP": "clip_vision_model",
    "llava of SigLIP": "siglip_vision_model",
    "llava of ViT": "vit",
    "llava of DINOv2": "dinov2",
    "llava with registers": "dinov2_with_registers",
}
FAMILIES = {
    "llava_next of CLIP": "LlavaNext",
    "llava_next of SigLIP": "LlavaNextOfSiglip",
    "llava_onevision": "LlavaOneVision",
    "llava_onevision of videos": "LlavaOneVisionVideos",
    "internvl of Qwen2": "InternVL",
    "internvl of videos": "InternVLVideos",
    "internvl of Qwen3": "InternVLOfQwen3",
    "internvl of Llama": "InternVLOfLlama",
    "internvl of experts": "InternVLOfExperts",
    "smolvlm": "SmolVLM",
    "smolvlm of videos": "SmolVLMVideos",
    "idefics3": "Idefics3",
    "llava of Pixtral": "PixtralLlava",
    "mistral3": "Mistral3",
    "qwen2_vl": "Qwen2VL",
    "qwen2_5_vl": "Qwen25VL",
    "qwen3_vl": "Qwen3VL",
    "qwen3_vl_moe": "Qwen3VLMoe",
    "glm4v": "Glm4v",
    "glm4v of videos": "Glm4vVideos",
    "glm4v_moe": "Glm4vMoe",
    "glm46v": "Glm46VMoe",
    "kimi_k25": "KimiK25",
    "kimi_k25 of the running model": "KimiK25Running",
    "kimi_k25 of videos": "KimiK25Videos",
    "qwen3_5": "Qwen35",
    "qwen3_5_moe": "Qwen35Moe",
    "qwen3_5 of videos": "Qwen35Videos",
    "qwen2_vl of videos": "Qwen2VLVideos",
    "qwen2_5_omni": "Qwen25OmniWhole",
    "qwen2_5_omni_thinker": "Qwen25Omni",
    "qwen2_5_omni_thinker with audio tracks": "Qwen25OmniTalking",
    "qwen3_omni_moe": "Qwen3OmniWhole",
    "qwen3_omni_moe_thinker": "Qwen3Omni",
    "qwen3_omni_moe_thinker with audio tracks": "Qwen3OmniTalking",
    "qwen2_5_vl of videos": "Qwen25VLVideos",
    "qwen3_vl of videos": "Qwen3VLVideos",
    "gemma3": "Gemma3",
    "gemma4 of images": "Gemma4",
    "gemma4 of videos": "Gemma4Videos",
    "gemma4 with experts": "Gemma4Moe",
    "gemma4 with clipped linears": "Gemma4Clipped",
    "gemma4 of E4B": "Gemma4E4B",
    "gemma4 of audio": "Gemma4Audio",
}
MOE = ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "glm4_moe", "gpt_oss", "deepseek_v3")
GEMMA = ("gemma", "gemma2", "gemma3_text", "gemma4_text", "gemma4")
DECODERS = ("llama", "mistral", "qwen2", "qwen3", *GEMMA, "phi3", *MOE, *HYBRIDS)


def rows():
    """Returns rows: the first cell, whether it loads and trains, for each axis whether it is claimed, and export."""
    text = (PROJECT / "inputs/README.md").read_text().split("\n## Families")[1].split("\n## ")[0]
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 7 and cells[0].startswith("`") and cells[0] != "`model_type`":
            yield cells[0], cells[1:3], dict(zip(AXES, cells[3:6])), cells[6]


def of_family(name):
    return [case for family, table in cases(takes_all=False).items() if family.__name__ == name
            for case in table.values()]


def of_decoder(name):
    alone = {**CASES, **GLM_CASES, **GPT_OSS_CASES, **DEEPSEEK_CASES, **HYBRID_CASES, **GEMMA4_CASES}
    return [case for case in alone.values() if case.get("decoder", "llama") == name and "gpt2" not in case]


def of_tower(name):
    towers = [case for case in [*CASES.values(), *TOWER_CASES.values()] if "gpt2" not in case]
    seeing = [case for case in towers if not case.get("only_text")]
    return [case for case in seeing if case.get("tower", "clip_vision_model") == name]


def of_sound(family):
    return [case for case in SPOKEN_CASES.values() if case.get("family") == family]


# The parts that a cell names, each with its cases; in a row of several parts, each has all that the row claims.
OF = {
    **{name: of_decoder(name) for name in DECODERS},
    "gpt2": [case for case in CASES.values() if "gpt2" in case],
    **{part: of_tower(name) for part, name in TOWERS.items()},
    **{part: of_family(name) for part, name in FAMILIES.items()},
    "llava with Whisper": of_sound(None),
    "qwen2_audio": of_sound("qwen2_audio"),
    "voxtral": of_sound("voxtral"),
}


def parts_of(cell):
    """The names of OF that a first cell stands for."""
    names = re.findall(r"`(\w+)`", cell)
    whole = [part for part in OF if part.split()[0] in names]
    named = [part for part in whole if " " not in part or part.split()[-1] in cell]
    return names, named


def comes_back(part):
    """Whether a test takes it to files and back into transformers."""
    if part in FAMILIES:
        return hasattr(test_family_parity.FamilyParity, f"test_{FAMILIES[part]}_comes_back")
    if part in TOWERS:
        return TOWERS[part] in ("clip_vision_model", *check_weights_files.TOWERS)
    return part in ("llama", "gpt2", *check_weights_files.DECODERS, *test_spoken_parity.PUBLISHED)


def degrees(case, axis):
    """By module, where it has more than one rank along the axis."""
    found = {}
    for key in case.get("deck", []):
        match = re.fullmatch(rf"mesh\.(\w+)\.{axis}=(\d+)", key)
        if match and int(match[2]) > 1:
            found[match[1]] = int(match[2])
    return found


def faults():
    seen = set()
    for cell, others, axes, out in rows():
        names, parts = parts_of(cell)
        seen.update(names)
        for name in names:
            if not any(part.split()[0] == name for part in parts):
                yield f"{cell}: {name} has no cases"
        if set(others) != {"yes"} or out not in ("yes", "in parts"):
            yield f"{cell}: says {others}, {out}"
        for part in parts:
            cases = OF[part]
            if not any(case.get("ranks", 1) == 1 for case in cases):
                yield f"{part}: no case on one rank"
            if (out == "yes") != comes_back(part):
                yield f"{part}: out again = {out}, but whether a test shows it is {comes_back(part)}"
            for axis, claim in axes.items():
                on = [degrees(case, axis) for case in cases if degrees(case, axis)]
                if claim == "no" and on:
                    yield f"{part}: {axis} is called refused, and has cases"
                if claim != "no" and not any("llm" in modules for modules in on):
                    yield f"{part}: {axis} = {claim} without a case"
                has_encoder = part.split()[0] not in (*DECODERS, "gpt2")
                if claim != "no" and axis != "pp" and has_encoder and not any(set(modules) - {"llm"} for modules in on):
                    yield f"{part}: {axis} = {claim} without a case of its encoder"
    corpus = (PROJECT / "tests/fuzz/corpus/config").glob("good_*.json")
    read = {json.loads(path.read_text())["model_type"] for path in corpus} - {"composed"}
    if read != seen:
        yield f"rows that lack: {sorted(read - seen)}, too many: {sorted(seen - read)}"
    unnamed = set(OF) - {part for cell, *_ in rows() for part in parts_of(cell)[1]}
    if unnamed:
        yield f"cases of no row: {sorted(unnamed)}"


found = list(faults())
for fault in found:
    print(fault)
sys.exit(1 if found else 0)
