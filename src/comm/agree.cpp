// SPDX-License-Identifier: Apache-2.0
#include "comm/agree.hpp"

#include <exception>
#include <numeric>
#include <set>
#include <string>

#include "core/error.hpp"

namespace zea {
namespace {

/// How a step ended on this rank.
struct Outcome {
  std::exception_ptr failure;  ///< null: it went well
  ExitCode code = ExitCode::Internal;
  std::string message;
};

/// Describes the exception that is being handled.
Outcome failed(ExitCode code, const std::string& message) {
  return {std::current_exception(), code, message};
}

Outcome outcome_of(const std::function<void()>& risky) {
  try {
    risky();
    return {};
  } catch (const Error& error) {
    return failed(error.code(), error.what());
  } catch (const std::exception& error) {
    return failed(ExitCode::Internal, error.what());
  } catch (...) {
    return failed(ExitCode::Internal, "unknown exception");
  }
}

Counts sizes_of_texts(Collectives& host, const std::string& text) {
  const auto own = static_cast<int64_t>(text.size());
  Counts sizes(static_cast<size_t>(host.size()));
  host.all_gather(&own, sizes.data(), Counts(sizes.size(), 1), DType::Int64).wait();
  return sizes;
}

std::string space_for(const Counts& sizes) {
  return std::string(static_cast<size_t>(std::accumulate(sizes.begin(), sizes.end(), int64_t{0})),
                     '\0');
}

std::vector<std::string> split(const std::string& all, const Counts& sizes) {
  std::vector<std::string> texts;
  size_t begin = 0;
  for (const int64_t size : sizes) {
    texts.push_back(all.substr(begin, static_cast<size_t>(size)));
    begin += static_cast<size_t>(size);
  }
  return texts;
}

}  // namespace

void agree(Collectives& control, const std::function<void()>& risky) {
  Outcome outcome = outcome_of(risky);
  int64_t lowest = outcome.failure ? control.rank() : control.size();
  control.all_reduce(&lowest, 1, DType::Int64, ReduceOp::Min).wait();
  if (lowest == control.size()) return;
  auto code = static_cast<int64_t>(outcome.code);
  control.broadcast(&code, 1, DType::Int64, static_cast<int>(lowest)).wait();
  const std::string message =
      all_gather_texts(control, control.rank() == lowest ? outcome.message : "")[lowest];
  if (outcome.failure) std::rethrow_exception(outcome.failure);
  throw_error(static_cast<ExitCode>(code),
              "rank " + std::to_string(lowest) + " failed: " + message);
}

void agree_on_root(Collectives& control, const std::function<void()>& risky) {
  agree(control, [&] {
    if (control.rank() == 0) risky();
  });
}

std::vector<std::string> gather_texts(Collectives& host, const std::string& text) {
  const Counts sizes = sizes_of_texts(host, text);
  const bool is_root = host.rank() == 0;
  std::string all = is_root ? space_for(sizes) : "";
  host.gather(text.data(), all.data(), sizes, DType::UInt8, 0).wait();
  return is_root ? split(all, sizes) : std::vector<std::string>();
}

std::vector<std::string> all_gather_texts(Collectives& host, const std::string& text) {
  const Counts sizes = sizes_of_texts(host, text);
  std::string all = space_for(sizes);
  host.all_gather(text.data(), all.data(), sizes, DType::UInt8).wait();
  return split(all, sizes);
}

std::string describe(const std::vector<NodeNote>& notes, size_t num_nodes) {
  if (notes.empty()) return {};
  const auto& [first, host, text] = notes.front();
  if (num_nodes == 1) return text;
  std::set<int> nodes;
  for (const NodeNote& note : notes) nodes.insert(note.node);
  return text + " (on " + std::to_string(nodes.size()) + " of " + std::to_string(num_nodes) +
         " nodes" + (nodes.size() == 1 ? ": " : ", the first ") + host + ")";
}

std::string note_of_nodes(Collectives& host, const NodeNote& own) {
  const size_t ranks = static_cast<size_t>(host.size());
  std::vector<int32_t> node_of_rank(ranks);
  const int32_t node = own.node;
  host.all_gather(&node, node_of_rank.data(), Counts(ranks, 1), DType::Int32).wait();
  const bool has_note = !own.text.empty();
  const std::vector<std::string> hosts = all_gather_texts(host, has_note ? own.host : "");
  const std::vector<std::string> texts = all_gather_texts(host, own.text);
  std::vector<NodeNote> notes;
  for (size_t r = 0; r < ranks; ++r)
    if (!texts[r].empty()) notes.push_back({node_of_rank[r], hosts[r], texts[r]});
  return describe(notes, std::set(node_of_rank.begin(), node_of_rank.end()).size());
}

}  // namespace zea
