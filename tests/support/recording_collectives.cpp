// SPDX-License-Identifier: Apache-2.0
#include "support/recording_collectives.hpp"

#include <algorithm>

namespace zea::testing {
namespace {

class RecordedWork : public Pending::Work {
 public:
  RecordedWork(Pending real, std::shared_ptr<int> asked)
      : real_(std::move(real)), asked_(std::move(asked)) {}

  void wait() override { real_.wait(); }
  bool test() override {
    ++*asked_;
    return real_.test();
  }

 private:
  Pending real_;
  std::shared_ptr<int> asked_;
};

class RecordingCollectives : public WrappedCollectives {
 public:
  RecordingCollectives(std::unique_ptr<Collectives> real, Record& record)
      : WrappedCollectives(*real), real_(std::move(real)), record_(record) {}

  Pending start(const CollectiveCall& call) override {
    if (call.kind == CallKind::Exchange) return start_apart(call);
    if (call.kind == CallKind::Barrier) return inner_.start(call);
    record_.push_back({call_name(call.kind), size(), call.count, call.dtype,
                       call.send ? call.send : call.receive});
    const auto asked = record_.back().asked;
    return Pending(std::make_unique<RecordedWork>(inner_.start(call), asked));
  }

 private:
  std::unique_ptr<Collectives> real_;
  Record& record_;
};

}  // namespace

MakeCollectives recording(Record& record) {
  return [&record](const Communicator& communicator) {
    return std::make_unique<RecordingCollectives>(make_mpi_collectives(communicator), record);
  };
}

Record calls_of(const Record& record, const std::string& call) {
  Record found;
  std::copy_if(record.begin(), record.end(), std::back_inserter(found),
               [&](const RecordedCall& made) { return made.call == call; });
  return found;
}

}  // namespace zea::testing
