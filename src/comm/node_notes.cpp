// SPDX-License-Identifier: Apache-2.0
#include "comm/node_notes.hpp"

#include <set>

#include "comm/agree.hpp"

namespace zea {

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
