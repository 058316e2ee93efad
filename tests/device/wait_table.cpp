// SPDX-License-Identifier: Apache-2.0
#include "device/wait_table.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>

namespace zea::testing {
namespace {

constexpr int kCalls = 4096, kStreams = 4096, kMeeters = 32, kName = 120;
constexpr int kTableFile = 1000;  // the same in every process

std::mutex mutex;

}  // namespace

struct Table {
  struct Call {
    bool is_there, has_begun;
    char name[kName];
    int64_t turn;
    int stream, num_meeters;
    Meeter meeters[kMeeters];
  };
  /// Numbers of streams and calls are one more than they are: all begins as zeros.
  struct Stream {
    int call, other;
  };

  int rank, host_stream;
  Stream streams[kStreams];
  Call calls[kCalls];
};

namespace {

/// Tables of the processes that a search has come to.
class Search {
 public:
  struct Node {
    enum Kind { Call, Stream, Host } kind;
    int process, index;

    auto operator<=>(const Node&) const = default;
  };

  /// Follows waits from `start` until a circle closes, or else as far as the first of them go.
  std::string explain(const Node& start) {
    const bool is_circle = follow(start);
    if (path_.empty()) path_ = longest_;
    std::string text;
    for (const Node& node : path_)
      if (const std::string name = name_of(node); !name.empty())
        text += (text.empty() ? "" : ", which waits for ") + name;
    return is_circle ? "waits in a circle: " + text : text;
  }

 private:
  bool follow(const Node& node) {
    const auto seen = std::ranges::find(path_, node);
    if (seen != path_.end()) {
      // A host and streams without a call are about to go on.
      if (std::none_of(seen, path_.end(), [](const Node& one) { return one.kind == Node::Call; }))
        return false;
      path_.erase(path_.begin(), seen);
      path_.push_back(node);
      return true;
    }
    if (!done_.insert({node, true}).second) return false;
    path_.push_back(node);
    for (const Node& next : awaited(node))
      if (follow(next)) return true;
    if (path_.size() > longest_.size()) longest_ = path_;
    path_.pop_back();
    return false;
  }

  std::vector<Node> awaited(const Node& node) {
    const Table& table = of(node.process);
    const auto of_stream = [&](int number) {
      return Node{Node::Stream, node.process, (number - 1) % kStreams};
    };
    if (node.kind == Node::Call) return awaited_by_call(node);
    if (node.kind == Node::Host) {
      return table.host_stream > 0 ? std::vector{of_stream(table.host_stream)}
                                   : std::vector<Node>();
    }
    const Table::Stream& stream = table.streams[node.index];
    if (stream.call > 0) return {{Node::Call, node.process, stream.call - 1}};
    if (stream.other > 0) return {of_stream(stream.other)};
    return {{Node::Host, node.process, 0}};
  }

  std::vector<Node> awaited_by_call(const Node& node) {
    const Table& table = of(node.process);
    const Table::Call& call = table.calls[node.index];
    std::vector<Node> awaited;
    if (call.has_begun) {
      for (int i = 0; i < call.num_meeters; ++i) {
        const Meeter& meeter = call.meeters[i];
        const int there = find(meeter);
        if (there < 0)
          awaited.push_back({Node::Host, meeter.process, 0});
        else if (!of(meeter.process).calls[there].has_begun)
          awaited.push_back({Node::Call, meeter.process, there});
      }
      return awaited;
    }
    const int first = first_not_begun(table);
    if (first != node.index) return {{Node::Call, node.process, first}};
    if (table.streams[call.stream].call != node.index + 1)
      return {{Node::Stream, node.process, call.stream}};
    for (int i = 0; i < kCalls; ++i)  // which hold the thread blocks that it needs
      if (table.calls[i].is_there && table.calls[i].has_begun)
        awaited.push_back({Node::Call, node.process, i});
    return awaited;
  }

  static int first_not_begun(const Table& table) {
    int first = -1;
    for (int i = 0; i < kCalls; ++i)
      if (table.calls[i].is_there && !table.calls[i].has_begun &&
          (first < 0 || table.calls[i].turn < table.calls[first].turn))
        first = i;
    return first;
  }

  int find(const Meeter& meeter) {
    const Table& table = of(meeter.process);
    for (int i = 0; i < kCalls; ++i)
      if (table.calls[i].is_there)
        for (int m = 0; m < table.calls[i].num_meeters; ++m)
          if (table.calls[i].meeters[m].meeting == meeter.meeting) return i;
    return -1;
  }

  std::string name_of(const Node& node) {
    const Table& table = of(node.process);
    const std::string rank = "rank " + std::to_string(table.rank) + "'s ";
    if (node.kind == Node::Host) return rank + "host";
    if (node.kind == Node::Stream) return "";
    const Table::Call& call = table.calls[node.index];
    return rank + call.name + (call.has_begun ? "" : " to begin");
  }

  /// A copy, as the process goes on.
  const Table& of(int process) {
    std::unique_ptr<Table>& table = tables_[process];
    if (table) return *table;
    table = std::make_unique<Table>();
    const std::string path =
        "/proc/" + std::to_string(process) + "/fd/" + std::to_string(kTableFile);
    const int file = open(path.c_str(), O_RDONLY);
    if (file >= 0 && pread(file, table.get(), sizeof(Table), 0) < 0) *table = {};
    if (file >= 0) close(file);
    return *table;
  }

  std::map<int, std::unique_ptr<Table>> tables_;
  std::map<Node, bool> done_;
  std::vector<Node> path_, longest_;
};

}  // namespace

WaitTable::WaitTable() {
  const int file = memfd_create("waits", 0);
  if (file < 0 || ftruncate(file, sizeof(Table)) != 0 || dup2(file, kTableFile) != kTableFile)
    throw std::runtime_error("no memory for the table of waits");
  close(file);
  void* at = mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED, kTableFile, 0);
  if (at == MAP_FAILED) throw std::runtime_error("no memory for the table of waits");
  table_ = static_cast<Table*>(at);
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  table_->rank = rank != nullptr ? std::atoi(rank) : 0;
}

WaitTable& WaitTable::own() {
  static WaitTable* one = new WaitTable;  // streams outlive whatever ends with the program
  return *one;
}

int WaitTable::launch(const WaitingCall& call) {
  const std::lock_guard lock(mutex);
  for (int i = 0; i < kCalls; ++i) {
    Table::Call& entry = table_->calls[i];
    if (entry.is_there) continue;
    entry.is_there = true;
    entry.has_begun = false;
    entry.turn = call.turn;
    std::snprintf(entry.name, kName, "%s", call.name.c_str());
    entry.stream = call.stream % kStreams;
    entry.num_meeters = std::min<int>(static_cast<int>(call.meeters.size()), kMeeters);
    std::copy_n(call.meeters.begin(), entry.num_meeters, entry.meeters);
    return i;
  }
  throw std::runtime_error("more calls at a time than the table of waits holds");
}

void WaitTable::reach(int call) {
  const std::lock_guard lock(mutex);
  table_->streams[table_->calls[call].stream].call = call + 1;
}

void WaitTable::begin(int call) {
  const std::lock_guard lock(mutex);
  table_->calls[call].has_begun = true;
}

void WaitTable::end(int call) {
  const std::lock_guard lock(mutex);
  table_->calls[call].is_there = false;
  table_->streams[table_->calls[call].stream].call = 0;
}

void WaitTable::wait(int stream, int other) {
  const std::lock_guard lock(mutex);
  table_->streams[stream % kStreams].other = other + 1;
}

void WaitTable::host_waits(int stream) {
  const std::lock_guard lock(mutex);
  table_->host_stream = stream + 1;
}

std::string WaitTable::explain(int call) const {
  return Search().explain({Search::Node::Call, getpid(), call});
}

}  // namespace zea::testing
