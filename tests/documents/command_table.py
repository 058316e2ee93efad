# SPDX-License-Identifier: Apache-2.0
"""How every command of the documents is tested. check_commands.py runs what stands here, page by page, in a folder
that has the project's scripts and decks, a small run of the quickstart and a small GPT-2."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Way:
    """Commands that run in place of a command of a document, by default and under the label long (None: the same),
    and CTest tests that show the rest."""

    quick: tuple
    long: tuple | None = None
    by: tuple = ()


def runs(*instead, always=()):
    """The command as it stands under long, and with pairs (text, other text) put in place by default; with those of
    `always` in both."""

    def way(command):
        whole = replaced(command, always)
        return Way((replaced(whole, instead),), (whole,))

    return way


def planned(command):
    """By default its plan; under long it runs."""
    return Way((re.sub(r"^mpirun -n (\d+) zea", r"zea -n --ranks \1", command),), (command,))


def in_parts(*parts, long=(), by=()):
    """It needs what is not here: other commands show that its script, options and deck are right."""
    return lambda command: Way(parts, long, by)


def tested_by(*tests):
    return lambda command: Way((), (), tests)


def bench(*instead):
    """By default that the script knows its options; under long with fewer rounds."""

    def way(command):
        return Way((help_of(command),), (replaced(command, instead),))

    return way


def replaced(command, pairs):
    for text, other in pairs:
        assert text in command, f"{command}: it has no {text}"
        command = command.replace(text, other)
    return command


def help_of(command):
    """Every long option of it must stand in the script's help."""
    script = next(word for word in command.split() if word.endswith(".py"))
    options = [word for word in command.split(" -- ")[0].split() if word.startswith("--")]
    checks = "".join(f" && grep -q -e {option} help.txt" for option in options)
    return f".venv/bin/python -B {script} --help > help.txt{checks}"


def deck_plans(ranks, arguments):
    return f"zea -n --ranks {ranks} -i {arguments}"


DECK = "inputs/fashion_captions_2m.toml"
PYTHON = ".venv/bin/python"
BENCH, PROGRAMS = f"{PYTHON} tests/bench", "build/ci/tests/bench"
SHORT = "schedule.steps=2 optim.warmup_steps=1"
FEW = (DECK, f"{DECK} {SHORT}")
TABLE = {
    # README.md
    "./jobs/quickstart.sh": tested_by("run_quickstart_ranks2", "run_quickstart_whole_ranks2"),
    "./tests/run.sh": in_parts("bash -n tests/run.sh", ".venv/bin/cmake --list-presets=test | grep '\"ci\"'"),
    "export PATH=$PWD/build/release/src:$PWD/build/release/postprocess:$PATH": runs(),
    f"{PYTHON} jobs/pack_text.py notes.txt --tokenizer gpt2/tokenizer.json --max-tokens 512 --out text": runs(),
    "mpirun -n 4 zea -i inputs/gpt2_124m_fsdp.toml model.weights=gpt2 model.config='\"\"'"
    " data.train=text/train.h5": runs(("text/train.h5", "text/train.h5 schedule.steps=2")),
    f"sbatch --nodes=2 jobs/train.sbatch {DECK}": in_parts(
        "bash -n jobs/train.sbatch", deck_plans(4, DECK), by=("run_slurm_mpirun_ranks2", "run_slurm_srun_ranks2")
    ),
    f"zea -n --ranks 4 -i {DECK} mesh.llm.tp=2": runs(),
    f"mpirun -n 4 zea -i {DECK} -d runs/tp2 mesh.llm.tp=2": planned,
    f"mpirun -n 4 zea -i {DECK} -d runs/replayed run.replay_every=100": planned,
    "jobs/finetune.sh llava-1.5-7b-hf talks.json": tested_by("reference_finetune"),
    "mpirun -n 4 zea -r quickstart/run -d runs/longer schedule.steps=1200": runs(
        ("=1200 checkpoint.every=300", "=6"), always=[("=1200", "=1200 checkpoint.every=300")]
    ),
    "zea-consolidate runs/longer trained_hf/": runs(),
    "zea-inspect quickstart/run": runs(),
    f"{PYTHON} postprocess/plot_metrics.py quickstart/run --out curves.png": runs(),
    f"{PYTHON} postprocess/contact_sheet.py quickstart/eval/predictions.jsonl quickstart/test.h5"
    " --out sheet.png": runs(),
    # inputs/
    "mpirun -n 2 zea -r quickstart/run -d said 'run.mode=\"generate\"' eval.generate_tokens=64"
    " eval.temperature=0.7": runs(("=64", "=4")),
    f"zea -n --ranks 2 -i {DECK}": runs(),
    "zea -h optim.lr": runs(always=[("optim.lr", "optim.lr | grep '^optim.lr$'")]),
    "zea -h data.resized_max_pixels": runs(),
    f"mpirun -n 4 zea --verify-layout -i {DECK} mesh.llm.tp=2": runs((DECK, f"{DECK} --steps 1")),
    "zea -h data.cache_features": runs(),
    f"mpirun -n 2 zea -i {DECK} -d runs/first schedule.steps=200 optim.lr=1e-3": planned,
    f"mpirun -n 2 zea -i {DECK} -d runs/lora model.llm.lora.targets='[\"q_proj\", \"v_proj\"]'": runs(FEW),
    "zea-consolidate runs/lora merged/": runs(),
    "zea-consolidate --adapter runs/lora adapter/": runs(),
    "mpirun -n 4 zea -i inputs/fashion_captions_2m_grid.toml": planned,
    f"zea --profile costs.json -i {DECK}": runs(),
    f"zea -n --ranks 4 -i {DECK} mesh.llm.pp=2 mesh.profile=costs.json": runs(),
    "zea -n --ranks 22 --ranks-per-node 8 -i inputs/clip_b32_whisper_tiny_llama_1b_disjoint.toml": runs(),
    "zea -n --ranks 22 -i inputs/clip_b32_whisper_tiny_llama_1b_disjoint.toml |"
    f" {PYTHON} postprocess/plot_schedule.py - --out schedule.png": runs(),
    f'zea -n --ranks 4 -i {DECK} --compare mesh.llm.tp=2 "mesh.llm.tp=2 mesh.vision.tp=2"': runs(),
    "zea -n --ranks 16 --hardware inputs/hardware/h100_nvlink_infiniband.toml -i inputs/qwen3_8b_fsdp.toml": runs(),
    "zea -n --json --ranks 64 --hardware inputs/hardware/h100_nvlink_infiniband.toml"
    " -i inputs/llama31_70b_tp8_fsdp8.toml schedule.global_batch=16 |"
    f" {PYTHON} postprocess/plot_plan.py - --out timeline.png": runs(),
    "zea --plan --ranks 16 --hardware inputs/hardware/h100_nvlink_infiniband.toml --out layouts"
    " -i inputs/llava_15_7b_plan.toml": runs(("--ranks 16", "--ranks 4")),
    "zea --plan --ranks 16 --hardware inputs/hardware/h100_nvlink_infiniband.toml --mtbf 8 -d quickstart/run"
    " -i inputs/llava_15_7b_plan.toml": runs(("--ranks 16", "--ranks 4")),
    "zea --plan --json --ranks 16 --hardware inputs/hardware/h100_nvlink_infiniband.toml"
    " -i inputs/llava_15_7b_plan.toml |"
    f" {PYTHON} postprocess/plot_plan.py - --out plan.png": runs(("--ranks 16", "--ranks 4")),
    f"zea -n --ranks 8 -i {DECK} mesh.dp_replicate=2 mesh.llm.strategy=hybrid_shard": runs(),
    f"zea -n --ranks 512 -i {DECK} model.weights='\"\"' model.config=inputs/fashion_captions_2m.json": runs(),
    "zea -n --ranks 8 -i inputs/clip_b32_llama_1b_ddp.toml": runs(),
    "zea -n --ranks 8 -i inputs/clip_b32_llama_1b_fsdp.toml": runs(),
    "zea -n --ranks 8 -i inputs/gpt2_124m_fsdp.toml": runs(),
    # jobs/
    "RANKS=2 jobs/finetune.sh llava-1.5-7b-hf talks.json run.device=cuda schedule.steps=1000"
    " optim.lr=2e-5": tested_by("reference_finetune"),
    "RANKS=2 jobs/finetune.sh llava-1.5-7b-hf talks.json run.device=cuda": tested_by("reference_finetune"),
    "jobs/finetune.sh llava-1.5-7b-hf talks.json model.vision.train=false "
    "model.llm.lora.targets='[\"q_proj\", \"v_proj\"]' optim.lr=2e-4": in_parts(
        deck_plans(
            2,
            "inputs/llava_15_7b_tp2.toml model.vision.train=false "
            "model.llm.lora.targets='[\"q_proj\", \"v_proj\"]'",
        ),
        by=("reference_finetune",),
    ),
    "PLAN_ONLY=1 RANKS=16 jobs/finetune.sh Qwen2.5-VL-7B-Instruct talks.json run.device=cuda"
    " schedule.steps=1000": tested_by("reference_finetune_parts"),
    "sbatch --nodes=2 --ntasks-per-node=8 --gpus-per-node=8 jobs/train_many_nodes.sbatch finetuned/deck.toml"
    " -d finetuned/run schedule.steps=1000": in_parts(
        "bash -n jobs/train_many_nodes.sbatch", by=("run_slurm_srun_ranks2",)
    ),
    "zea-consolidate finetuned/run finetuned/model/": tested_by("reference_finetune"),
    "VISION=clip-vit-large-patch14-336 OUT=aligned jobs/finetune.sh Qwen2.5-7B captions.json"
    " model.vision.train=false model.llm.train=false optim.lr=1e-3": tested_by("reference_finetune_parts"),
    "OUT=tuned jobs/finetune.sh aligned/model talks.json": tested_by("reference_finetune_parts"),
    'zea-generate tuned/model "What is this?" --image a.jpg': tested_by("reference_finetune_parts"),
    "VISION=clip-vit-large-patch14-336 jobs/finetune.sh Qwen2.5-7B talks.json": tested_by("reference_finetune_parts"),
    # jobs/cluster.md
    f'zea -n --ranks 8 --ranks-per-node 4 -i {DECK} | grep "bytes per rank"': runs(),
    "PLAN_ONLY=1 RANKS=16 PROCESSES=4 jobs/finetune.sh Qwen2.5-VL-7B-Instruct talks.json run.device=cuda": tested_by(
        "reference_finetune_parts"
    ),
    "sbatch --partition=gpu --account=lab --gres=gpu:a100:4 --mem=200G --time=12:00:00 jobs/train_gpu_node.sbatch"
    f" {DECK} -d /scratch/me/captions": in_parts(
        "bash -n jobs/train_gpu_node.sbatch", deck_plans(4, DECK), by=("run_train_chain",)
    ),
    f'ZEA="apptainer run --nv zea.sif" sbatch jobs/train_gpu_node.sbatch {DECK}': in_parts(
        "bash -n jobs/train_gpu_node.sbatch", by=("run_train_chain",)
    ),
    f"sbatch --no-requeue jobs/train.sbatch {DECK}": in_parts(
        "bash -n jobs/train.sbatch", by=("run_slurm_mpirun_ranks2",)
    ),
    "sbatch --no-requeue --dependency=afterany:4711 jobs/train.sbatch -r runs/fashion_captions_2m": in_parts(
        "bash -n jobs/train.sbatch", by=("run_slurm_mpirun_ranks2",)
    ),
    "jobs/setup.sh": tested_by("run_quickstart_ranks2"),
    "jobs/build.sh": tested_by("run_quickstart_ranks2"),
    f"mpirun -n 2 build/release/src/zea -i {DECK}": in_parts(
        "test -x build/release/src/zea", long=(f"mpirun -n 2 build/release/src/zea -i {DECK}",)
    ),
    f"mpirun -n 4 zea -i {DECK} -d runs/four schedule.steps=200": planned,
    f"jobs/private_network.sh mpirun -n 4 zea -i {DECK} -d runs/four": tested_by("run_ports_ranks2"),
    f"mpirun -n 2 zea -i {DECK} -d runs/timed -t 00:30:00": runs(FEW),
    "mpirun -n 4 zea -r runs/timed": runs(("runs/timed", "runs/timed schedule.steps=3")),
    f"sbatch jobs/train.sbatch {DECK} schedule.steps=1000": in_parts(
        "bash -n jobs/train.sbatch jobs/train_chain.sh",
        deck_plans(2, f"{DECK} schedule.steps=1000"),
        by=("run_slurm_mpirun_ranks2",),
    ),
    "sbatch jobs/train.sbatch -r runs/fashion_captions_2m": in_parts(
        "bash -n jobs/train.sbatch",
        long=("mpirun -n 2 zea -r runs/fashion_captions_2m schedule.steps=940",),
        by=("run_slurm_mpirun_ranks2",),
    ),
    f"sbatch jobs/train_gpu_node.sbatch {DECK}": in_parts(
        "bash -n jobs/train_gpu_node.sbatch", deck_plans(4, f"{DECK} run.device=cuda")
    ),
    "sbatch --nodes=2 --ntasks-per-node=8 --gpus-per-node=8 jobs/train_many_nodes.sbatch my_deck.toml": in_parts(
        "bash -n jobs/train_many_nodes.sbatch", deck_plans(16, "inputs/gpt2_124m_fsdp.toml run.device=cuda")
    ),
    f"mpirun -n 4 zea --check-node -i {DECK} -d runs/four": runs(),
    "mpirun -n 4 zea --profile-hardware hardware.toml precision.preset=bf16": tested_by("run_preflight_ranks4"),
    "jobs/bundle.sh": tested_by("run_bundle_ranks2"),
    "tar xf build/release/zea-0.1.0.tar.gz -C elsewhere": tested_by("run_bundle_ranks2"),
    "ZEA_TORCH_ROOT=/opt/venv/lib/python3.11/site-packages/torch elsewhere/zea-0.1.0/bin/zea --version": tested_by(
        "run_bundle_ranks2"
    ),
    "jobs/bundle.sh --tests ci zea.tar.gz": tested_by("run_bundle_ranks2"),
    "tar xf zea.tar.gz": tested_by("run_bundle_ranks2"),
    "PYTHON=python3 zea-0.1.0/share/zea/tests/gpu/first_run.sh": tested_by("run_bundle_ranks2", "gpu_first_run"),
    "tests/gpu/first_run.sh --device cpu --quick --tree build/ci --out first_run": tested_by("gpu_first_run"),
    "tests/aarch64/run.sh build/aarch64": tested_by("aarch64"),
    "tests/gpu/lease.sh --device cpu --quick --tree build/ci --out lease": tested_by("gpu_lease_whole"),
    "tests/gpu/several.sh --device cpu --quick --tree build/ci --out several": tested_by("gpu_lease_whole"),
    ".venv/bin/cmake --preset release -DTorch_DIR=/opt/libtorch/share/cmake/Torch": tested_by("style_configure"),
    ".venv/bin/cmake --preset release -DZEA_ENABLE_TESTS=OFF": tested_by("style_configure"),
    ".venv/bin/cmake --install build/release --prefix opt": runs(
        always=[("opt", "opt > installed.txt && test -x opt/bin/zea -a -f opt/share/zea/jobs/train.sbatch")]
    ),
    "apptainer build zea.sif jobs/zea.def": in_parts("test -f jobs/zea.def", by=("style_packaging",)),
    "mpirun -n 4 apptainer run zea.sif -i deck.toml": in_parts("grep -q 'exec zea' jobs/zea.def"),
    "spack repo add jobs/spack/spack_repo/zea && spack dev-build zea@0.1.0": in_parts(
        "test -f jobs/spack/spack_repo/zea/packages/zea/package.py", by=("style_packaging",)
    ),
    f"{PYTHON} jobs/pack_text.py notes.txt --train-bpe 512 --max-tokens 64 --out packed_text": runs(),
    f"{PYTHON} jobs/pack.py talks.json --images pictures --tokenizer quickstart/tokenizer.json"
    " --image-tokens 16 --image-token '<image>' --bos '<bos>' --eos '<eos>' --out talks.h5": runs(),
    "zea-inspect talks.h5": runs(),
    "./jobs/quickstart_gpt2.sh": tested_by("run_quickstart_gpt2_ranks2", "run_quickstart_gpt2_whole_ranks2"),
    "./jobs/quickstart_lora.sh": tested_by("run_quickstart_ranks2"),
    "./jobs/quickstart_spoken.sh": tested_by("run_quickstart_spoken_ranks2", "run_quickstart_spoken_whole_ranks2"),
    f"mpirun -n 2 zea -i {DECK} -d runs/traced schedule.steps=50 log.trace_step=20": runs(
        ("schedule.steps=50", SHORT), ("=20", "=2")
    ),
    f"{PYTHON} postprocess/merge_traces.py runs/traced --out trace.json": runs(),
    # postprocess/
    'zea-generate model_hf "What is on the table?" --image photo.jpg': in_parts(
        "zea-generate --help", by=("reference_finetune",)
    ),
    f"{PYTHON} postprocess/score.py quickstart/eval/predictions.jsonl --metric exact --metric anls": runs(),
    "zea-consolidate quickstart/run trained.h5": runs(),
    "zea-consolidate quickstart/run model_hf/": runs(),
    "zea-compare trained.h5 model_hf/": runs(),
    "zea-import --random inputs/gpt2_2m.json gpt2_2m.h5 --seed 1": runs(),
    "zea-import gpt2 gpt2.h5": runs(),
    "zea-import --upcycle 8 qwen3 qwen3_moe.h5": tested_by("reference_upcycled"),
    "zea-consolidate --optimizer quickstart/run trained_state.h5": runs(),
    "zea-consolidate --ranks 3 quickstart/run cut_anew": runs(),
    "zea-consolidate --max-shard-size 5GB --memory 256MiB -j 2 quickstart/run in_parts/": runs(),
    "zea-compare --optimizer quickstart/run cut_anew": runs(),
    f"{PYTHON} postprocess/read_checkpoint.py quickstart/run": runs(),
    f"{PYTHON} postprocess/read_checkpoint.py quickstart/run language_model.model.norm.weight --state exp_avg": runs(),
    "zea-inspect --check quickstart/run": runs(),
    "zea-inspect --deck quickstart/run": runs(),
    "zea-inspect --norms quickstart/weights.h5": runs(),
    "zea-inspect quickstart/train.h5": runs(),
    "zea-inspect quickstart/train.h5 --sample 5": runs(),
    "zea-inspect quickstart/train.h5 --picture samples.png": runs(),
    "zea-inspect quickstart/run/checkpoints/step-00000900": runs(always=[("00000900", "00000004")]),
    "mpirun -n 2 zea -r quickstart/run/checkpoints/step-00000900 -d runs/branch schedule.steps=902": runs(
        always=[("00000900", "00000004"), ("=902", "=6")]
    ),
    f"zea -n --ranks 4 -i {DECK} mesh.llm.pp=2 |"
    f" {PYTHON} postprocess/plot_schedule.py - --out schedule.png": runs(),
    "mpirun -n 2 zea --reproduce quickstart/run -d runs/again": runs(),
    "mpirun -n 2 zea --reproduce quickstart/run -d runs/begin --steps 20": runs(("20", "2")),
    # src/, tests/: the build and ctest are those that run this
    "jobs/build.sh ci unit_schedule": in_parts("bash -n jobs/build.sh", "grep -q unit_schedule build/ci/build.ninja"),
    "build/ci/tests/unit/unit_schedule --file=test_plan": runs(),
    "python3 tests/style/check_structure.py .": tested_by("style_structure"),
    "jobs/build.sh ci unit_io unit_fuzz": in_parts("grep -q unit_fuzz build/ci/build.ninja"),
    ".venv/bin/ctest --test-dir build/ci -R 'test_h5|test_corpus' --output-on-failure": runs(always=[("-R", "-N -R")]),
    "jobs/build.sh ci": in_parts(".venv/bin/cmake --list-presets | grep '\"ci\"'"),
    ".venv/bin/ctest --test-dir build/ci -L style --output-on-failure": runs(always=[("-L", "-N -L")]),
    "tests/run.sh -L unit": in_parts(".venv/bin/ctest --test-dir build/ci -N -L unit"),
    ".venv/bin/cmake --preset fuzz": in_parts(".venv/bin/cmake --list-presets | grep '\"fuzz\"'", by=("fuzz_preset",)),
    ".venv/bin/cmake --build --preset fuzz": in_parts(
        ".venv/bin/cmake --list-presets=build | grep '\"fuzz\"'", by=("fuzz_preset",)
    ),
    ".venv/bin/ctest --preset fuzz": in_parts(
        ".venv/bin/cmake --list-presets=test | grep '\"fuzz\"'", by=("fuzz_preset",)
    ),
    ".venv/bin/ctest --test-dir build/ci -L network --output-on-failure": runs(always=[("-L", "-N -L")]),
    ".venv/bin/ctest --test-dir build/ci -L long": runs(always=[("-L", "-N -L")]),
    ".venv/bin/ctest --test-dir build/ci -R documents --output-on-failure": runs(always=[("-R", "-N -R")]),
    # tests/bench/
    f"{BENCH}/bench_peer.py build/ci --parts quickstart --layouts 1x2": bench(
        ("build/ci", "build/ci --quick")
    ),
    f"{BENCH}/bench_peer.py build/ci --parts quickstart decoder mix start head": bench(
        ("build/ci", "build/ci --quick")
    ),
    f"{BENCH}/bench_against_torch.py build/ci --rounds 5": bench(("--rounds 5", "--rounds 1 --steps 2")),
    f"zea --profile unit_costs.json -i {DECK}": in_parts(
        deck_plans(1, DECK), long=(f"zea --profile unit_costs.json -i {DECK}",)
    ),
    f"{BENCH}/bench_pipeline.py build/ci": bench(("build/ci", "build/ci --rounds 1 --steps 2")),
    f"{BENCH}/bench_modalities.py build/ci": bench(("build/ci", "build/ci --rounds 1 --steps 2")),
    f"{BENCH}/bench_tensor_parallel.py build/ci": bench(("build/ci", "build/ci --rounds 1 --steps 1")),
    f"{BENCH}/bench_expert_parallel.py build/ci": bench(("build/ci", "build/ci --rounds 1 --steps 1")),
    f"{BENCH}/bench_context_parallel.py build/ci --rounds 6": bench(
        ("--rounds 6", "--rounds 1 --steps 1")
    ),
    f"{BENCH}/bench_context_parallel.py build/ci --hybrid --rounds 2 --steps 2": bench(
        ("--rounds 2 --steps 2", "--rounds 1 --steps 1")
    ),
    f"{PROGRAMS}/bench_delta": runs(("bench_delta", "bench_delta 1"), always=()),
    f"{BENCH}/bench_layouts.py build/ci --ranks 4 --runs 8": bench(("--runs 8", "--runs 2 --decks text")),
    f"{BENCH}/bench_search.py build/ci": bench(("build/ci", "build/ci --ranks 64 --models text")),
    f"{BENCH}/bench_schedules.py build/ci --ranks 8": bench(("--ranks 8", "--ranks 4 --decks spoken --large 64")),
    f"{BENCH}/bench_network.py build/ci --ranks 2 --rounds 2": bench(
        ("--rounds 2", "--rates 0 --layouts ddp --rounds 1")
    ),
    f"{BENCH}/bench_published.py build/ci": bench(),
    f"{BENCH}/bench_delta.py build/ci --rounds 7": bench(("--rounds 7", "--rounds 1")),
    f"{PROGRAMS}/bench_attention": runs(("bench_attention", "bench_attention planner"), always=()),
    f"{BENCH}/bench_collectives.py {PROGRAMS}/bench_collectives --rounds 7": bench(
        ("--rounds 7", "--rounds 1")
    ),
    f"{PROGRAMS}/bench_balance inputs/qwen2_vl_7b.json": runs(),
    f"mpirun -n 4 {PROGRAMS}/bench_flips full_shard 20": in_parts(
        f"test -x {PROGRAMS}/bench_flips", long=(f"mpirun -n 4 {PROGRAMS}/bench_flips full_shard 1",)
    ),
    f"mpirun -n 4 {PROGRAMS}/bench_flips --clean 1000": in_parts(
        f"test -x {PROGRAMS}/bench_flips", long=(f"mpirun -n 4 {PROGRAMS}/bench_flips --clean 10",)
    ),
    f"{BENCH}/bench_false_alarms.py build/ci --steps 100000": bench(("--steps 100000", "--steps 300")),
    f"{BENCH}/bench_every_axis.py build/ci --out every_axis.png": bench(("build/ci", "build/ci --steps 12")),
    f"{PROGRAMS}/bench_decoding 2 7": runs(("2 7", "2 1")),
    f"{PROGRAMS}/bench_opening . 1000": runs(always=((". 1000", ". 5"),)),
    f"{PROGRAMS}/bench_planning inputs/clip_b32_llama_1b.json": runs(("1b.json", "1b.json 2")),
    f"{BENCH}/bench_consolidate.py {PROGRAMS}/make_checkpoint"
    " build/ci/postprocess/zea-consolidate --mib 4096 --ranks 8": bench(("--mib 4096", "--mib 64 --rounds 1")),
    f"{BENCH}/bench_checkpoint.py {PROGRAMS}/bench_checkpoint --mib 512 -- mpirun": bench(
        ("--mib 512", "--mib 64 --rounds 1")
    ),
    f"{BENCH}/bench_checkpoint_dcp.py {PROGRAMS}/bench_checkpoint --mib 512 -- mpirun": bench(
        ("--mib 512", "--mib 64 --rounds 1")
    ),
    f"{BENCH}/bench_checkpoint_training.py build/ci/src/zea jobs -- mpirun": bench(
        ("jobs", "jobs --vocabulary 2000 --steps 24")
    ),
    f"mpirun -n 1 {PROGRAMS}/bench_generation inputs/fashion_captions_2m.json 16 64 128 3": runs(
        ("16 64 128 3", "2 8 4 1")
    ),
    f"{PROGRAMS}/bench_experts 5": runs(("bench_experts 5", "bench_experts 1 128 64 6")),
    f"mpirun -n 1 {PROGRAMS}/bench_loading loading_files 7": runs(("files 7", "files 1 16 16")),
    f"{PROGRAMS}/bench_kernels": runs(("bench_kernels", "bench_kernels 1")),
    f"{PROGRAMS}/bench_deferred_backward": runs(("bench_deferred_backward", "bench_deferred_backward 1 64 64 1")),
}

# Decks in blocks, by their first line: ranks that they are planned for, and keys that they need in addition to their
# own.
QUICKSTART = ("data.train=quickstart/train.h5", "model.weights=quickstart/weights.h5")
# Ranks and overrides; or the test that runs its like.
DECKS = {
    'mesh = "auto"': "run_auto_layout_ranks4",
    "[model]": (2, ()),
    "[model.vision]": "reference_composed",
    "[model.llm]": (2, QUICKSTART),
    "[mesh.llm]": (4, QUICKSTART),
    "[mesh]": (10, ("data.train=to_be_packed.h5", "model.config=inputs/clip_b32_llama_1b.json")),
}
