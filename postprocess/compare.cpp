// SPDX-License-Identifier: Apache-2.0
// zea-compare: whether two sources hold the same model, tensor by tensor and bit by bit, and how
// far apart they are where they do not. Memory is bounded by an option, not by the model.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>

#include "core/dtype.hpp"
#include "core/text.hpp"
#include "tool.hpp"
#include "zea/copy.hpp"

namespace zea {
namespace {

constexpr int kDiffer = 8;

struct CompareOptions {
  std::string a, b;
  bool with_optimizer = false, show_progress = false;
  CopyOptions copy;
};

/// How the elements of a state of a tensor differ.
struct Difference {
  int64_t elements = 0;  ///< that are not bitwise the same
  double absolute = 0, relative = 0;

  void add(const Difference& other) {
    elements += other.elements;
    absolute = std::max(absolute, other.absolute);
    relative = std::max(relative, other.relative);
  }
};

template <class Value>
Difference difference_of(const Value* a, const Value* b, int64_t count) {
  Difference found;
  for (int64_t i = 0; i < count; ++i) {
    if (std::memcmp(a + i, b + i, sizeof(Value)) == 0) continue;
    const double absolute = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    const double size =
        std::max(std::abs(static_cast<double>(a[i])), std::abs(static_cast<double>(b[i])));
    found.add({1, absolute, size > 0 ? absolute / size : 0});
  }
  return found;
}

/// Elements of any type, but for those that are the same.
Difference difference_of(DType dtype, const char* a, const char* b, int64_t count) {
  const auto size = static_cast<size_t>(element_bytes(dtype));
  if (std::memcmp(a, b, size * static_cast<size_t>(count)) == 0) return {};
  if (!is_floating(dtype)) {
    Difference found;
    for (int64_t i = 0; i < count; ++i)
      found.elements += std::memcmp(a + i * size, b + i * size, size) != 0;
    return found;
  }
  std::vector<double> wide_a(static_cast<size_t>(count)), wide_b(wide_a);
  convert_elements(dtype, a, DType::Float64, wide_a.data(), count);
  convert_elements(dtype, b, DType::Float64, wide_b.data(), count);
  return difference_of(wide_a.data(), wide_b.data(), count);
}

using TensorsByName = std::map<std::string, TensorInfo>;

TensorsByName tensors_by_name(const WeightsSource& source) {
  TensorsByName tensors;
  for (const TensorInfo& tensor : source.tensors()) tensors[tensor.name] = tensor;
  return tensors;
}

class Comparison {
 public:
  explicit Comparison(const CompareOptions& options)
      : options_(options), a_(open_weights(options.a)), b_(open_weights(options.b)) {
    if (!options.with_optimizer) return;
    state_a_ = &state_of(*a_);
    state_b_ = &state_of(*b_);
  }

  /// Prints what differs; true when nothing does.
  bool run() {
    if (state_a_) compare_runs();
    choose_pieces();
    compare_pieces();
    for (const auto& [what, difference] : differences_) print(what, difference);
    std::printf("%zu tensors%s compared, %lld %s\n", compared_, state_a_ ? " and their states" : "",
                static_cast<long long>(faults_), faults_ == 1 ? "difference" : "differences");
    return faults_ == 0;
  }

 private:
  /// "exp_avg+exp_avg_sq"
  static std::string joined(const std::vector<std::string>& states) {
    return states.empty() ? "none" : join(states, "+");
  }

  void fault(const std::string& text) {
    std::printf("%s\n", printable(text, true).c_str());
    ++faults_;
  }

  void compare_runs() {
    if (state_a_->run_id() != state_b_->run_id())
      fault("run: " + state_a_->run_id() + ", " + state_b_->run_id());
    if (state_a_->deck() != state_b_->deck()) fault("deck: differs");
    const TrainPosition a = state_a_->position(), b = state_b_->position();
    if (a != b)
      fault("position: step " + std::to_string(a.step) + " after " + std::to_string(a.samples) +
            " samples, step " + std::to_string(b.step) + " after " + std::to_string(b.samples));
  }

  /// All that both have in one shape is compared; the rest is told.
  void choose_pieces() {
    const TensorsByName a = tensors_by_name(*a_), b = tensors_by_name(*b_);
    for (const auto& [name, tensor] : a) {
      const auto other = b.find(name);
      if (other == b.end())
        fault(name + ": not in " + options_.b);
      else if (other->second.shape != tensor.shape)
        fault(name + ": shape " + shape_text(tensor.shape) + ", " +
              shape_text(other->second.shape));
      else
        choose_states(tensor, other->second.dtype);
    }
    for (const auto& [name, tensor] : b)
      if (!a.contains(name)) fault(name + ": not in " + options_.a);
  }

  void choose_states(const TensorInfo& tensor, DType other) {
    choose(tensor, kStateParameter, tensor, {tensor.name, tensor.shape, other});
    if (!state_a_) return;
    const std::vector<std::string> states = state_a_->states(tensor.name);
    const std::vector<std::string> others = state_b_->states(tensor.name);
    if (states != others)
      return fault(tensor.name + ": optimizer state " + joined(states) + ", " + joined(others));
    for (const std::string& state : states)
      choose(tensor, state, state_a_->state_info(tensor.name, state),
             state_b_->state_info(tensor.name, state));
  }

  /// Values of two types are compared as float64, which holds both.
  void choose(const TensorInfo& tensor, const std::string& state, const TensorInfo& held_a,
              const TensorInfo& held_b) {
    ++compared_;
    const DType a = held_a.dtype, b = held_b.dtype;
    const std::string what = tensor.name + (state == kStateParameter ? "" : " (" + state + ")");
    if (a != b) fault(what + ": " + dtype_name(a) + ", " + dtype_name(b));
    if (held_a.shape != held_b.shape)
      fault(what + ": shape " + shape_text(held_a.shape) + ", " + shape_text(held_b.shape));
    if (held_a.shape != held_b.shape || (a != b && !(is_floating(a) && is_floating(b)))) return;
    pieces_.push_back(make_whole_piece({tensor.name, tensor.shape, a == b ? a : DType::Float64},
                                       state, "", "", elements_of_each(tensor, held_a)));
  }

  void compare_pieces() {
    int64_t bytes = 0;
    for (const Piece& piece : pieces_)
      bytes += piece.extent.elements() * static_cast<int64_t>(element_bytes(piece.dtype));
    Progress progress(bytes, options_.show_progress);
    CopyLimits limits = options_.copy.limits();
    limits.buffer_bytes /= 4;  // the other source's part, and both as float64
    copy_pieces(*a_, state_a_, pieces_, limits,
                [&](const Piece& piece, int64_t first, int64_t count, const void* data) {
                  compare_part(piece, first, count, static_cast<const char*>(data));
                  progress.add(count * static_cast<int64_t>(element_bytes(piece.dtype)));
                });
  }

  void compare_part(const Piece& piece, int64_t first, int64_t count, const char* data) {
    std::vector<char> other(static_cast<size_t>(count) * element_bytes(piece.dtype));
    read_part(*b_, state_b_, piece, first, count, other.data());
    const Difference found = difference_of(piece.dtype, data, other.data(), count);
    if (found.elements == 0) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    const std::string state = piece.state == kStateParameter ? "" : " (" + piece.state + ")";
    differences_[piece.tensor + state].add(found);
  }

  void print(const std::string& what, const Difference& difference) {
    fault(what + formatted(": %lld elements differ, by at most %.3g, relative %.3g",
                           static_cast<long long>(difference.elements), difference.absolute,
                           difference.relative));
  }

  const CompareOptions& options_;
  std::unique_ptr<WeightsSource> a_, b_;
  const StateSource* state_a_ = nullptr;  ///< null unless optimizer state is compared
  const StateSource* state_b_ = nullptr;
  std::vector<Piece> pieces_;
  size_t compared_ = 0;
  int64_t faults_ = 0;
  std::mutex mutex_;  ///< of what follows
  std::map<std::string, Difference> differences_;
};

}  // namespace
}  // namespace zea

int main(int argc, char** argv) {
  zea::CompareOptions options;
  bool same = true;
  CLI::App app(
      "Compares two models tensor by tensor: weights files, safetensors, Hugging Face directories, "
      "checkpoints or run directories. Exit code 0: bitwise the same; 8: they differ.",
      "zea-compare");
  app.add_option("a", options.a, "A model")->required();
  app.add_option("b", options.b, "Another model")->required();
  app.add_flag("--optimizer", options.with_optimizer,
               "Compare optimizer state, position, run and deck as well");
  app.add_flag("--progress", options.show_progress, "Show progress even without a terminal");
  options.copy.add_limits_to(app);
  const int code = zea::run_tool(app, argc, argv, [&] { same = zea::Comparison(options).run(); });
  return code == 0 && !same ? zea::kDiffer : code;
}
