// SPDX-License-Identifier: Apache-2.0
// Frozen values are saved unchanged: in the type of the file that they were read from and bit for
// bit, whatever the compute type and the layout.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/dtype.hpp"
#include "io/checkpoint.hpp"
#include "support/tiny_checkpoint.hpp"

namespace zea::test_frozen_origin {
namespace {

const Deck kFrozenInFp32 = {.precision = "fp32", .train_vision = false, .train_llm = false};
const Deck kFrozenInBf16 = {.precision = "bf16", .train_vision = false, .train_llm = false};

/// A file of one element type. Others may write to it.
class FileOfType : public WeightsSource {
 public:
  FileOfType(const Plan& plan, DType dtype)
      : before_(plan.model, plan.config_json, kMasterSeed),
        after_(plan.model, plan.config_json, kMasterSeed + 1),
        dtype_(dtype),
        tensors_(before_.tensors()) {
    for (TensorInfo& tensor : tensors_) tensor.dtype = dtype;
    std::ranges::sort(tensors_, {}, &TensorInfo::name);
  }

  void change() { is_changed_ = true; }
  void remove() { is_there_ = false; }

  std::string describe() const override { return "a file"; }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  std::string config_json() const override { return before_.config_json(); }
  void read(const std::string& name, const Shape& shape, const Extent& extent, DType dtype,
            void* target) const override {
    if (!is_there_) throw WeightsError("the file is gone");
    std::vector<char> values(static_cast<size_t>(extent.elements()) * element_bytes(dtype_));
    (is_changed_ ? after_ : before_).read(name, shape, extent, dtype_, values.data());
    convert_elements(dtype_, values.data(), dtype, target, extent.elements());
  }

 private:
  testing::FilledSource before_, after_;
  DType dtype_;
  std::vector<TensorInfo> tensors_;
  bool is_changed_ = false, is_there_ = true;
};

std::vector<char> bytes_of(const WeightsSource& source, const TensorInfo& tensor, DType dtype) {
  std::vector<char> values(static_cast<size_t>(num_elements(tensor.shape)) * element_bytes(dtype));
  source.read(tensor.name, tensor.shape, whole(tensor.shape), dtype, values.data());
  return values;
}

/// A save of a run that starts from `source`.
SaveReport save(Running& running, const WeightsSource& source, const std::string& directory,
                int64_t step) {
  CheckpointWriter writer(running.engine, *running.control);
  writer.starts_from(source);
  writer.start(request(directory, step));
  writer.snapshot_before_update();
  return writer.finish();
}

/// Whether every frozen tensor of a checkpoint has the type and the bits of `expected`'s, rounded
/// through `held` where that is another.
void expect_bits(const Plan& plan, const std::string& checkpoint, const WeightsSource& expected,
                 std::optional<DType> held = {}) {
  const CheckpointSource found(checkpoint);
  found.check_all();
  int num_frozen = 0;
  for (const TensorInfo& tensor : expected.tensors()) {
    const ParamSpec& param = plan.model.params[plan.model.param_index(tensor.name)];
    if (param.trainable) continue;
    const auto same = std::ranges::find(found.tensors(), tensor.name, &TensorInfo::name);
    ASSERT_NE(same, found.tensors().end());
    EXPECT_EQ(same->dtype, tensor.dtype) << tensor.name;
    std::vector<char> bits = bytes_of(expected, tensor, tensor.dtype);
    if (held && param.used) {
      const std::vector<char> rounded = bytes_of(expected, tensor, *held);
      convert_elements(*held, rounded.data(), tensor.dtype, bits.data(),
                       num_elements(tensor.shape));
    }
    EXPECT_EQ(bytes_of(found, tensor, tensor.dtype), bits) << tensor.name;
    ++num_frozen;
  }
  EXPECT_GT(num_frozen, 10);
}

TEST(FrozenOrigin, GivesItsTypeAndBitsToFilesOfEveryLayout) {
  const SharedDirectory shared;
  for (const Layout& layout : layouts_of_this_run())
    for (const Deck& deck : {kFrozenInFp32, kFrozenInBf16})
      for (const DType given : {DType::BFloat16, DType::Float16, DType::Float32}) {
        const std::string directory = shared / (layout.name + deck.precision + dtype_name(given));
        run_on(layout, deck, [&](Running& running) {
          const FileOfType file(running.plan, given);
          load_weights(running.engine, file);

          const SaveReport report = save(running, file, directory, 1);

          EXPECT_EQ(report.rounded_bytes, 0);
          if (running.control->rank() == 0) expect_bits(running.plan, report.path, file);
          running.control->barrier();
        });
      }
}

TEST(FrozenOrigin, IsTheCheckpointThatARunGoesOnFrom) {
  const SharedDirectory shared;
  const Layout first = layouts_of_this_run().front(), last = layouts_of_this_run().back();
  const auto path = [&](int64_t step) { return shared / ("step-0000000" + std::to_string(step)); };
  run_on(last, kFrozenInBf16, [&](Running& running) {
    const FileOfType file(running.plan, DType::Float32);
    load_weights(running.engine, file);
    fill(running);  // the optimizer's states, too
    load_weights(running.engine, file);
    save(running, file, shared.path(), 1);
  });
  shared.barrier();
  struct Start {
    Layout layout;
    Deck deck;
    bool links;
  };
  // On the same layout files are shared in whatever type values are held.
  const bool is_one = first.ranks == last.ranks;
  int64_t step = 1;
  for (const Start& start : {Start{last, kFrozenInBf16, true}, Start{last, kFrozenInFp32, true},
                             Start{first, kFrozenInBf16, is_one}}) {
    run_on(start.layout, start.deck, [&](Running& running) {
      const CheckpointSource source(path(step));
      read_checkpoint(running.engine, *running.control, source);

      const SaveReport report = save(running, source, shared.path(), step + 1);

      EXPECT_EQ(report.linked_bytes > 0, start.links) << step;
      EXPECT_EQ(report.rounded_bytes, 0);
      if (running.control->rank() == 0)
        expect_bits(running.plan, report.path, FileOfType(running.plan, DType::Float32));
    });
    shared.barrier();
    ++step;
  }
}

/// A source of fp64 values, as drawn weights and merged adapters are, whatever type it reports.
/// Files have their fp32 values, and a run that resumes from these gets a different bf16 value than
/// from fp64 where fp32 is halfway between two.
class AlmostTies : public FileOfType {
 public:
  using FileOfType::FileOfType;

  void read(const std::string&, const Shape&, const Extent& extent, DType dtype,
            void* target) const override {
    const std::vector<double> values(static_cast<size_t>(extent.elements()),
                                     -0x1p-5 * (1 + 0x1p-8 + 0x1p-40));
    convert_elements(DType::Float64, values.data(), dtype, target, extent.elements());
  }
};

TEST(FrozenOrigin, RoundsAsWhatGoesOnFromIt) {
  const SharedDirectory shared;
  for (const DType said : {DType::Float64, DType::Float32})
    run_on(layouts_of_this_run().back(), kFrozenInBf16, [&](Running& running) {
      const std::string directory = shared / dtype_name(said);
      const AlmostTies ties(running.plan, said);
      load_weights(running.engine, ties);
      std::vector<at::Tensor> before;
      for (const auto& buffer : running.engine.buffers())
        if (buffer && !buffer->trainable()) before.push_back(buffer->master().clone());
      EXPECT_EQ(save(running, ties, directory, 1).rounded_bytes, 0);
      running.control->barrier();

      read_checkpoint(running.engine, *running.control,
                      CheckpointSource(directory + "/step-00000001"));

      size_t next = 0;
      for (const auto& buffer : running.engine.buffers()) {
        if (!buffer || buffer->trainable()) continue;
        EXPECT_TRUE(before[next++].equal(buffer->master()));
      }
      EXPECT_GT(next, 0);
    });
}

/// Only the values in memory are left then; if the file had fewer bits, they are complete.
TEST(FrozenOrigin, ThatIsNoLongerWhatWasReadLeavesWhatIsHeld) {
  const SharedDirectory shared;
  for (const bool is_gone : {false, true})
    for (const DType given : {DType::BFloat16, DType::Float32}) {
      const std::string directory =
          shared / (std::string(dtype_name(given)) + (is_gone ? "-" : ""));
      run_on(layouts_of_this_run().back(), kFrozenInBf16, [&](Running& running) {
        FileOfType file(running.plan, given);
        const FileOfType as_read(running.plan, given);
        load_weights(running.engine, file);
        if (is_gone)
          file.remove();
        else
          file.change();

        const SaveReport report = save(running, file, directory, 1);

        EXPECT_EQ(report.rounded_bytes > 0, given == DType::Float32);
        if (running.control->rank() == 0)
          expect_bits(running.plan, report.path, as_read, DType::BFloat16);
        running.control->barrier();
      });
    }
}

}  // namespace
}  // namespace zea::test_frozen_origin
