# SPDX-License-Identifier: Apache-2.0
"""The planted bugs: silent errors that training programs have shipped. Each is a text of a source file and its
replacement, which keeps the right code behind `PLANTED`, a choice at run time (the environment variable
ZEA_PLANTED). A bug has a run of zea --verify-layout that finds it, where a layout and its reference differ by it, and a
default test that finds it at little cost. Some bugs also stop a run."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Bug:
    name: str
    says: str  # for the table
    file: str
    right: str  # occurs once in the file
    wrong: str
    verify: tuple = ()  # the model of a deck (run_bugs.py), and overrides; (): a layout and one rank share the bug
    test: tuple = ()  # a test of CTest, and a filter of GoogleTest's
    run: tuple = ()  # the same as for verify, of a run that stops before its checkpoint, as copies of parameters differ

    def planted(self):
        return self.wrong.replace("PLANTED", f'zea::planted("{self.name}")')


REPLICAS = ("llava", "mesh.vision.strategy=no_shard mesh.llm.strategy=no_shard")
LAYOUTS = ("test_layouts_ranks4", "Scenarios/Layouts.EqualOneRank/0")
AXES = ("test_step_records_ranks4", "StepRecords.EveryLayoutIsWithinItsBounds")
BUGS = [
    Bug(
        "replicated_gradient",
        "gradients of parameters that tp ranks replicate are not summed",
        "src/parallel/replicated_grad_sync.cpp",
        "if (elements == 0) return;",
        "if (elements == 0 || (PLANTED && sum.held.holders.group == ReplicationKind::Tp)) return;",
        ("llava", "mesh.llm.tp=2"),
        ("test_replicated_grad_sync_ranks4", "ReplicatedGradSync.SumOverHoldersWhatTheyHoldInCommon"),
        ("llava", "mesh.llm.tp=2"),
    ),
    Bug(
        "loss_by_microbatch",
        "losses are averaged over microbatches of unequal numbers of targets",
        "src/parallel/engine_units.cpp",
        "return run_unit_({plan_.model, spec, unit_parameters_[unit], inputs, (*microbatches_)[microbatch],\n"
        "                    head_, *layers_.at(spec.module), is_selective});",
        "UnitOutput made = run_unit_({plan_.model, spec, unit_parameters_[unit], inputs,\n"
        "                               (*microbatches_)[microbatch], head_, *layers_.at(spec.module),\n"
        "                               is_selective});\n"
        "  if (PLANTED && made.loss.defined())\n"
        "    made.loss = made.loss * (16.0 / static_cast<double>((*microbatches_)[microbatch].targets));\n"
        "  return made;",
        ("llava", "mesh.llm.strategy=full_shard"),
        LAYOUTS,
    ),
    Bug(
        "stale_buffer",
        "a gathered buffer keeps the values of the first step",
        "src/parallel/sharded_buffer.cpp",
        "finish_gather();\n  set_values(gathered_);",
        "finish_gather();\n"
        "  if (PLANTED) {\n"
        "    static std::map<const void*, at::Tensor> first;\n"
        "    at::Tensor& kept = first[this];\n"
        "    if (!kept.defined() || kept.numel() != gathered_.numel()) kept = gathered_.clone();\n"
        "    gathered_.copy_(kept);\n"
        "  }\n"
        "  set_values(gathered_);",
        ("llava", "mesh.llm.strategy=full_shard"),
        LAYOUTS,
    ),
    Bug(
        "norm_of_one_rank",
        "the gradient norm is outside the sum over ranks: each rank clips by its own",
        "src/train/train_step.cpp",
        "    sums = std::bit_cast<StepSums>(values);",
        "    const double own = sums.squares;\n"
        "    sums = std::bit_cast<StepSums>(values);\n"
        "    if (PLANTED) sums.squares = own;",
        ("llava", "mesh.llm.strategy=full_shard"),
        LAYOUTS,
        REPLICAS,
    ),
    Bug(
        "positions_in_cp",
        "position ids begin anew on each cp rank",
        "src/batch/microbatch_text.cpp",
        "pick(places.positions, cp_tokens)",
        "(PLANTED ? decltype(places.positions)(places.positions.begin(),\n"
        "             places.positions.begin() + count_tokens(cp_tokens)) : pick(places.positions, cp_tokens))",
        ("llava", "mesh.llm.cp=2"),
        AXES,
    ),
    Bug(
        "last_bucket",
        "the last bucket of gradients, which has the first unit, is not reduced",
        "src/schedule/schedule.cpp",
        "if (last && sharding.replicas > 1)",
        "if (last && sharding.replicas > 1 && !(PLANTED && buffer == 0))",
        REPLICAS,
        LAYOUTS,
        REPLICAS,
    ),
    Bug(
        "scale_after_accumulation",
        "accumulated gradients are divided by the number of microbatches once more",
        "src/train/train_step.cpp",
        "clip_factor(plan.options.optim.clip_norm, report.grad_norm) / sums.targets,",
        "clip_factor(plan.options.optim.clip_norm, report.grad_norm) / sums.targets /\n"
        "                      (PLANTED ? static_cast<double>(step.microbatches.size()) : 1.0),",
        ("llava", "mesh.llm.strategy=full_shard"),
        LAYOUTS,
    ),
    Bug(
        "tied_twice",
        "the gradient of tied embeddings is summed over their stages twice",
        "src/parallel/replicated_grad_sync.cpp",
        "  sum.pending.wait();",
        "  sum.pending.wait();\n"
        "  if (PLANTED && sum.held.is_tied())\n"
        "    (sum.packed.defined() ? sum.packed : gradient_of(sum.held.ranges.front())).mul_(2);",
        ("llava", "mesh.llm.pp=2"),
        AXES,
    ),
    Bug(
        "exchanged_states",
        "a resume reads the optimizer's first moments as its second and the other way round",
        "src/checkpoint/load_weights.cpp",
        "source.read_state(param.name, state.name, in_blocks",
        "const auto& states = plan.optimizer.states;\n"
        "          const bool is_first = &state == &states.front();\n"
        "          const StateSpec& other = is_first ? states.back() : states.front();\n"
        "          source.read_state(param.name, PLANTED ? other.name : state.name, in_blocks",
        test=("test_resume_bits_ranks4", "*"),
    ),
    Bug(
        "repeated_sample",
        "an epoch has a sample twice and another one never",
        "src/data/sampler.cpp",
        "std::swap(order_[i - 1], order_[draw_below(i, key_, counter)]);",
        "std::swap(order_[i - 1], order_[draw_below(i, key_, counter)]);\n  if (PLANTED) order_[0] = order_[1];",
        test=("test_sampler", "Sampler.EveryEpochIsAPermutation"),
    ),
    Bug(
        "frozen_decays",
        "weight decay shrinks frozen parameters",
        "src/optim/optimizer.cpp",
        "if (!buffers_with_gradient[cut.buffer] || !cut.rule.trains_at(step)) continue;",
        "if (PLANTED && !cut.rule.trains_at(step))\n"
        "      cut.run.of(engine_.buffers()[cut.buffer]->master()).mul_(1 - 0.1 * lr);\n"
        "    if (!buffers_with_gradient[cut.buffer] || !cut.rule.trains_at(step)) continue;",
        ("llava", "optim.frozen=['*.layers.1.*=1']"),
        ("test_frozen_rules_ranks4", "FrozenRules.AThawedParameterBeginsAnew"),
    ),
    Bug(
        "place_of_eps",
        "Adam adds eps before it corrects the second moment for bias",
        "src/optim/adam.cpp",
        ".eps = optim.eps,",
        ".eps = PLANTED ? optim.eps / std::sqrt(1 - std::pow(optim.betas[1], static_cast<double>(update.step)))\n"
        "                         : optim.eps,",
        test=("reference_trajectories", ""),
    ),
    Bug(
        "step_skipped_by_one",
        "one rank skips a step that the others take",
        "src/train/train_step.cpp",
        "if (!report.skipped) {",
        "if (!report.skipped && !(PLANTED && engine_.world_rank() == 1 && report.step == 2)) {",
        ("llava", "mesh.llm.strategy=full_shard"),
        LAYOUTS,
        REPLICAS,
    ),
    Bug(
        "half_of_vocabulary",
        "the exported embedding lacks half of its rows",
        "postprocess/model_output.cpp",
        "weights_->write(piece.dataset, first, count, data);",
        "weights_->write(piece.dataset, first,\n"
        '                    PLANTED && piece.tensor.ends_with("embed_tokens.weight") ? count / 2 : count, data);',
        test=("run_reader_ranks4", ""),
    ),
    Bug(
        "attention_across_samples",
        "tokens attend to the samples before theirs in the packed row",
        "src/batch/microbatch_text.cpp",
        ": AttentionMask(samples, true);",
        ": AttentionMask(PLANTED ? std::vector{Segment{0, std::ssize(host.words)}} : samples, true);",
        ("llava", "mesh.llm.strategy=full_shard"),
        LAYOUTS,
    ),
    Bug(
        "expert_gradient",
        "gradients of experts are not divided by ep",
        "src/train/train_step.cpp",
        "replicated_grad_sync_.run(step.schedule.has_gradient);",
        "replicated_grad_sync_.run(step.schedule.has_gradient);\n"
        "  if (PLANTED)\n"
        "    for (const auto& buffer : engine_.buffers())\n"
        "      if (buffer && buffer->trainable() && buffer->layout().is_over_ep)\n"
        "        buffer->gradient().mul_(engine_.plan().mesh.grid(kDecoder).ep());",
        ("qwen3_next", "mesh.llm.ep=2"),
        ("test_expert_parallel_ranks8", "ExpertParallel.EveryLayoutTrainsAsOneRank"),
    ),
    Bug(
        "router_loss_of_a_rank",
        "routers are balanced by the tokens of each rank alone",
        "src/train/router_losses.cpp",
        "control_.all_reduce(sums.data(), std::ssize(sums), DType::Float64, ReduceOp::Sum).wait();",
        "if (!PLANTED)\n"
        "    control_.all_reduce(sums.data(), std::ssize(sums), DType::Float64, ReduceOp::Sum).wait();",
        ("qwen3_next", "model.llm.router_aux_loss_coef=0.1"),
        ("test_router_losses_ranks4", "All/RouterLossRuns.EveryLayoutTrainsAsOneRank/0"),
    ),
    Bug(
        "state_across_samples",
        "a delta rule carries its state into the next sample of the packed row",
        "src/batch/microbatch_text.cpp",
        "out.text_scan = TokenScan(segments_of(words));",
        "out.text_scan = TokenScan(PLANTED ? std::vector{Segment{0, std::ssize(words)}} : segments_of(words));",
        ("qwen3_next", "mesh.llm.strategy=full_shard"),
        ("test_family_layouts_ranks4", "*qwen3_next*"),
    ),
    Bug(
        "dropout_of_a_rank",
        "each tp rank draws its own dropout",
        "src/batch/row_keys.cpp",
        "mixed(mixed(options.seed) + static_cast<uint64_t>(*options.trained_step));",
        "mixed(mixed(options.seed) + static_cast<uint64_t>(*options.trained_step) +\n"
        "                              static_cast<uint64_t>(PLANTED ? options.replica.rank : 0));",
        ("llava", "model.llm.dropout=0.2 mesh.llm.tp=2"),
        ("test_dropout_ranks4", "DropoutRuns.AreTheSameOnEveryLayoutAndWhereARunGoesOn"),
    ),
    Bug(
        "order_of_channels",
        "InternVL's pictures have blue and red exchanged",
        "src/data/preprocess.cpp",
        "const Image canvas = resize(image, {grid.high * size, grid.wide * size}, options);",
        "Image canvas = resize(image, {grid.high * size, grid.wide * size}, options);\n"
        "  for (size_t i = 0; PLANTED && i < canvas.pixels.size(); i += 3)\n"
        "    std::swap(canvas.pixels[i], canvas.pixels[i + 2]);",
        test=("reference_processors", ""),
    ),
    Bug(
        "theta_of_a_stage",
        "later pipeline stages use another RoPE theta",
        "src/batch/microbatch_text.cpp",
        "fill_rotary_tables(out.text_attention, model.decoder.block,",
        "fill_rotary_tables(out.text_attention,\n"
        "                       [&] {\n"
        "                         auto block = model.decoder.block;\n"
        "                         if (PLANTED && options.replica.coordinate(options.replica.rank, kDecoder).pp > 0)\n"
        "                           for (MixerSpec& mixer : block.mixers)\n"
        "                             if (auto* spec = std::get_if<AttentionSpec>(&mixer)) spec->rope.theta *= 2;\n"
        "                         return block;\n"
        "                       }(),",
        ("llava", "mesh.llm.pp=2"),
        AXES,
    ),
    Bug(
        "norm_over_holders",
        "the gradient norm counts parameters that tp ranks replicate once per rank",
        "src/optim/optimizer.cpp",
        "if (plan.cuts[part.param].is_first_holder(",
        "if (PLANTED || plan.cuts[part.param].is_first_holder(",
        ("llava", "mesh.llm.tp=2"),
        AXES,
    ),
    Bug(
        "bias_of_a_rank",
        "each rank updates the selection biases of experts only from its own tokens",
        "src/train/train_step.cpp",
        "expert_loads_.update_biases(loads);",
        "expert_loads_.update_biases(PLANTED ? expert_loads_.own_rows(expert_ends_) : loads);",
        ("glm4_moe", "optim.router_bias_update_rate=0.01"),
        ("test_router_bias_ranks4", "RouterBias.EveryLayoutTrainsAsOneRank"),
    ),
    Bug(
        "scale_of_adapters",
        "an export merges LoRA adapters without their scaling factor",
        "src/io/merged_adapters.cpp",
        "merge.scale * b[o * rank + r]",
        "(PLANTED ? 1.0 : merge.scale) * b[o * rank + r]",
        test=("reference_adapters", ""),
    ),
    Bug(
        "step_of_a_resume",
        "a resume is one step ahead in the optimizer's bias correction",
        "src/io/manifest.cpp",
        'count("optimizer_step"),',
        'count("optimizer_step") + (PLANTED ? 1 : 0),',
        test=("test_resume_bits_ranks4", "*"),
    ),
    Bug(
        "last_target_of_cp",
        "cp ranks drop the target of their last token",
        "src/batch/microbatch_text.cpp",
        "const auto is_target = [&](int64_t token) { return host.targets[token] >= 0; };\n"
        "  Ids ids = pick(host.targets, layout.owned()[coordinate.cp]);",
        "Ids kept = host.targets;\n"
        "  if (PLANTED && layout.owned().size() > 1 && !layout.owned()[coordinate.cp].empty())\n"
        "    kept[layout.owned()[coordinate.cp].back().end - 1] = -1;\n"
        "  const auto is_target = [&](int64_t token) { return kept[token] >= 0; };\n"
        "  Ids ids = pick(kept, layout.owned()[coordinate.cp]);",
        ("llava", "mesh.llm.cp=2"),
        AXES,
    ),
    Bug(
        "norm_weights_in_bf16",
        "norm weights are rounded to bf16 in every precision",
        "src/model/norm.cpp",
        "return weight ? weight->value() :",
        "if (PLANTED && weight) return weight->value().to(at::kBFloat16).to(weight->value().scalar_type());\n"
        "  return weight ? weight->value() :",
        test=("reference_trajectories", ""),
    ),
    Bug(
        "decayed_norms",
        "weight decay is applied to norms and biases",
        "src/spec/param_rules.cpp",
        "model.params[p].decays() ?",
        "PLANTED || model.params[p].decays() ?",
        test=("test_param_rules", "ParamRules.VectorsDoNotDecayByDefault"),
    ),
    Bug(
        "samples_of_the_first",
        "all replicas train on the samples of the first replica",
        "src/schedule/step_plan.cpp",
        "const std::vector<Ids> shares =\n"
        "        options_.balance ? *detail::distribute_longest_first(costs_, options_.replicas)\n"
        "                         : detail::distribute_round_robin(std::ssize(lengths_), options_.replicas);",
        "std::vector<Ids> shares =\n"
        "        options_.balance ? *detail::distribute_longest_first(costs_, options_.replicas)\n"
        "                         : detail::distribute_round_robin(std::ssize(lengths_), options_.replicas);\n"
        "    if (PLANTED) shares.assign(shares.size(), Ids(shares.front()));",
        ("llava", "mesh.llm.strategy=full_shard"),
        LAYOUTS,
    ),
    Bug(
        "order_of_the_first_epoch",
        "every epoch repeats the sample order of the first epoch",
        "src/data/sampler.cpp",
        "static_cast<uint64_t>(epoch))",
        "static_cast<uint64_t>(PLANTED ? 0 : epoch))",
        test=("test_sampler", "Sampler.*"),
    ),
    Bug(
        "target_of_the_next_sample",
        "the last token of a sample learns to predict the first one of the next sample in the row",
        "src/batch/microbatch.cpp",
        "host.targets.push_back(is_target ? sample.tokens[i + 1] : -1);",
        "if (PLANTED && i == 0 && !host.targets.empty()) host.targets.back() = id;\n"
        "    host.targets.push_back(is_target ? sample.tokens[i + 1] : -1);",
        ("llava", "mesh.llm.strategy=full_shard"),
        LAYOUTS,
    ),
    Bug(
        "last_microbatch",
        "sharded gradients contain only the last microbatch",
        "src/parallel/sharded_buffer.cpp",
        "gradient_.tensor().add_(own.to(gradient_.tensor().device()));",
        "if (PLANTED) gradient_.tensor().zero_();\n"
        "  gradient_.tensor().add_(own.to(gradient_.tensor().device()));",
        ("llava", "mesh.llm.strategy=full_shard"),
        LAYOUTS,
    ),
    Bug(
        "dropout_in_evaluations",
        "dropout stays active in evaluations",
        "src/parallel/engine_parts.cpp",
        ".trained_step = trained_step};",
        ".trained_step = PLANTED ? trained_step.value_or(0) : trained_step};",
        test=("test_dropout_ranks4", "DropoutRuns.DropWhileTrainingAlone"),
    ),
    Bug(
        "mean_of_ranks",
        "an evaluation's loss is the mean of the ranks' means",
        "src/train/evaluate.cpp",
        "all.loss = all.targets > 0 ? sums[0] / static_cast<double>(all.targets) : 0;",
        "all.loss = all.targets > 0 ? sums[0] / static_cast<double>(all.targets) : 0;\n"
        "    if (PLANTED) {\n"
        "      all.loss = own_.targets > 0 ? own_.loss / static_cast<double>(own_.targets) : 0;\n"
        "      control_.all_reduce(&all.loss, 1, DType::Float64, ReduceOp::Sum).wait();\n"
        "      all.loss /= control_.size();\n"
        "    }",
        test=LAYOUTS,
    ),
]
