// SPDX-License-Identifier: Apache-2.0
// The functions of NCCL that zea calls, on the stand-in device: calls run in their stream, one
// after the other, with the ranks of the communicator; those of a group run together. Errors that
// NCCL's documentation forbids are faults by name: ranks that call different functions, memory of
// the host, a message of another length than is received.
#include <nccl.h>

#include <atomic>
#include <cstring>
#include <random>
#include <set>

#include "core/dtype.hpp"
#include "device/device.hpp"
#include "device/meeting.hpp"
#include "device/wait_table.hpp"

using zea::DType;
using zea::testing::device;
using zea::testing::Meeting;
using zea::testing::OutOfPatience;
using zea::testing::Stream;
using zea::testing::TimedWork;
using zea::testing::Transfer;
using zea::testing::WaitTable;

/// Thread blocks that a kernel of NCCL has at most, if its communicator's configuration says
/// nothing.
constexpr int kBlocks = 32;

struct ncclComm {
  ncclComm(const std::string& id, int its_rank, int its_size, const ncclConfig_t* config)
      : rank(its_rank), size(its_size), meeting(id, its_rank, its_size) {
    if (config == nullptr) return;
    if (config->commName != nullptr) name = config->commName;
    if (config->maxCTAs != NCCL_CONFIG_UNDEF_INT) blocks = config->maxCTAs;
  }

  int rank, size;
  Meeting meeting;
  std::string name = "a communicator";
  int blocks = kBlocks;                                  ///< thread blocks of a call
  int64_t collectives = 0;                               ///< launched so far
  std::map<std::pair<int, int>, int64_t> messages = {};  ///< from, to
  std::set<Stream*> streams;
  std::atomic<ncclResult_t> error{ncclSuccess};
};

namespace {

struct Call {
  const char* name;
  const void* send;
  void* receive;
  size_t count;
  ncclDataType_t type;
  ncclRedOp_t op;
  int peer;
  ncclComm_t comm;
  cudaStream_t stream;
};

thread_local int group_depth = 0;
thread_local std::vector<Call> group;
thread_local std::vector<ncclComm_t> aborted;
std::string last_error;

DType dtype_of(ncclDataType_t type) {
  switch (type) {
    case ncclFloat64:
      return DType::Float64;
    case ncclFloat32:
      return DType::Float32;
    case ncclBfloat16:
      return DType::BFloat16;
    case ncclFloat16:
      return DType::Float16;
    case ncclInt64:
      return DType::Int64;
    case ncclInt32:
      return DType::Int32;
    default:
      return DType::UInt8;
  }
}

size_t bytes_of(const Call& call) {
  return call.count * zea::element_bytes(dtype_of(call.type));
}

template <typename T>
T combined(T a, T b, ncclRedOp_t op) {
  if (op == ncclSum) return static_cast<T>(a + b);
  return op == ncclMax ? std::max(a, b) : std::min(a, b);
}

template <typename T>
void combine(char* into, const char* from, size_t bytes, ncclRedOp_t op) {
  for (size_t i = 0; i < bytes; i += sizeof(T)) {
    T a, b;
    std::memcpy(&a, into + i, sizeof(T));
    std::memcpy(&b, from + i, sizeof(T));
    a = combined(a, b, op);
    std::memcpy(into + i, &a, sizeof(T));
  }
}

/// Combines types that C++ lacks, rounded at every hop.
void combine_narrow(char* into, const char* from, size_t bytes, DType type, ncclRedOp_t op) {
  const auto count = static_cast<int64_t>(bytes / zea::element_bytes(type));
  std::vector<float> a(count), b(count);
  zea::convert_elements(type, into, DType::Float32, a.data(), count);
  zea::convert_elements(type, from, DType::Float32, b.data(), count);
  for (int64_t i = 0; i < count; ++i) a[i] = combined(a[i], b[i], op);
  zea::convert_elements(DType::Float32, a.data(), type, into, count);
}

void combine(char* into, const char* from, size_t bytes, DType type, ncclRedOp_t op) {
  switch (type) {
    case DType::Float64:
      return combine<double>(into, from, bytes, op);
    case DType::Float32:
      return combine<float>(into, from, bytes, op);
    case DType::Int64:
      return combine<int64_t>(into, from, bytes, op);
    case DType::Int32:
      return combine<int32_t>(into, from, bytes, op);
    case DType::UInt8:
      return combine<uint8_t>(into, from, bytes, op);
    default:
      return combine_narrow(into, from, bytes, type, op);
  }
}

bool is(const Call& call, const char* name) {
  return std::strcmp(call.name, name) == 0;
}

bool is_message(const Call& call) {
  return is(call, "ncclSend") || is(call, "ncclRecv");
}

std::string count_text(const Call& call) {
  return std::to_string(call.count) + " of type " + std::to_string(call.type);
}

/// As all ranks must say it.
std::string text_of(const Call& call) {
  std::string text = std::string(call.name) + " of " + count_text(call);
  if (is(call, "ncclBroadcast") || is(call, "ncclReduce"))
    text += ", root " + std::to_string(call.peer);
  return call.op == ncclSum ? text : text + ", operation " + std::to_string(call.op);
}

/// The bytes [begin, end) of the reduction of the shown data; `to` is the first of them.
void take_sum(const Call& call, const std::vector<const char*>& shown, size_t offset, size_t piece,
              size_t begin, size_t end, char* to) {
  const size_t from = std::max(begin, offset), until = std::min(end, offset + piece);
  if (from >= until) return;
  std::vector<char> sum(shown[0] + from - offset, shown[0] + until - offset);
  for (size_t r = 1; r < shown.size(); ++r)
    combine(sum.data(), shown[r] + from - offset, sum.size(), dtype_of(call.type), call.op);
  std::memcpy(to + from - begin, sum.data(), sum.size());
}

/// Bytes that each rank sends in the usual algorithms.
double sent_bytes(const Call& call) {
  const auto bytes = static_cast<double>(bytes_of(call));
  const double peers = call.comm->size - 1;
  if (is_message(call)) return bytes;
  if (is(call, "ncclAllReduce")) return 2 * bytes * peers / call.comm->size;
  return is(call, "ncclAllGather") || is(call, "ncclReduceScatter") ? bytes * peers : bytes;
}

double seconds_of(const Call& call) {
  const auto& costs = device().costs();
  if (!costs) return 0;
  return costs->call_seconds(call.name, sent_bytes(call), is_message(call) ? 2 : call.comm->size);
}

/// Returns the latest virtual time at which a rank began, where this one began at `begin`.
double run_collective(const Call& call, double begun) {
  const size_t bytes = bytes_of(call);
  const auto rank = static_cast<size_t>(call.comm->rank),
             size = static_cast<size_t>(call.comm->size);
  const char* send = device().open(call.send);
  char* receive = device().open(call.receive);
  Meeting& meeting = call.comm->meeting;
  const bool is_root = call.peer == call.comm->rank;
  if (is(call, "ncclAllGather"))
    return meeting.show(
        text_of(call), send, bytes,
        [&](const auto& shown, size_t offset, size_t piece) {
          for (size_t r = 0; r < size; ++r)
            std::memcpy(receive + r * bytes + offset, shown[r], piece);
        },
        begun);
  if (is(call, "ncclBroadcast"))
    return meeting.show(
        text_of(call), is_root ? send : nullptr, bytes,
        [&](const auto& shown, size_t offset, size_t piece) {
          std::memcpy(receive + offset, shown[call.peer], piece);
        },
        begun);
  const bool scatters = is(call, "ncclReduceScatter");
  const size_t begin = scatters ? rank * bytes : 0;
  const bool keeps = !is(call, "ncclReduce") || is_root;
  return meeting.show(
      text_of(call), send, scatters ? size * bytes : bytes,
      [&](const auto& shown, size_t offset, size_t piece) {
        if (keeps) take_sum(call, shown, offset, piece, begin, begin + bytes, receive);
      },
      begun);
}

std::vector<Transfer> messages_of(const std::vector<Call>& calls) {
  std::vector<Transfer> transfers;
  for (const Call& call : calls) {
    const bool sends = is(call, "ncclSend");
    char* data = device().open(sends ? call.send : call.receive);
    if (is_message(call))
      transfers.push_back({count_text(call), call.peer, data, bytes_of(call), sends});
  }
  return transfers;
}

void give_up(ncclComm& comm, const std::string& fault) {
  device().fail(fault);
  comm.meeting.abort();
  comm.error = ncclRemoteError;
}

/// Runs a call of a communicator. If it fails, the communicator is given up on all of its ranks:
/// the caller of the error query finds the fault, and the peers are notified. `explain`: why it did
/// not end.
void run_or_give_up(ncclComm& comm, const std::function<void()>& call,
                    const std::function<std::string()>& explain) {
  if (comm.error != ncclSuccess) return;
  try {
    call();
  } catch (const OutOfPatience& error) {
    give_up(comm, error.what() + explain());
  } catch (const std::exception& error) {
    give_up(comm, error.what());
  }
}

/// On the stream's thread.
void run_kernel(const std::vector<Call>& calls, Stream& stream, double begin) {
  TimedWork kernel{
      .name = calls[0].name, .group = calls[0].comm->name, .begin = begin, .met = begin};
  double seconds = 0;
  for (const Call& call : calls) {
    if (is_message(call)) continue;
    kernel.met = run_collective(call, begin);
    seconds += seconds_of(call);
  }
  kernel.end = kernel.met + seconds;
  std::vector<Transfer> messages = messages_of(calls);
  if (!messages.empty()) calls[0].comm->meeting.move(messages, begin);
  size_t number = 0;
  for (const Call& call : calls) {
    if (!is_message(call)) continue;
    const double met = messages[number++].met;
    kernel.met = std::max(kernel.met, met);
    kernel.end = std::max(kernel.end, met + seconds_of(call));
  }
  device().spend(stream, std::move(kernel));
}

/// In the order of launches, and in that of its stream.
void run_in_order(const std::vector<Call>& calls, Stream& stream, int64_t turn, int waiting) {
  ncclComm& comm = *calls[0].comm;
  WaitTable& table = WaitTable::own();
  table.reach(waiting);
  const double begin = device().launch_order().begin(turn, stream.time(), comm.blocks);
  table.begin(waiting);
  run_or_give_up(
      comm, [&] { run_kernel(calls, stream, begin); },
      [&] { return "; " + table.explain(waiting); });
  device().launch_order().end(turn, stream.time());
  table.end(waiting);
}

/// Numbers the calls, as all ranks that meet in them do.
zea::testing::WaitingCall numbered(const std::vector<Call>& calls, const Stream& stream,
                                   int64_t turn) {
  ncclComm& comm = *calls[0].comm;
  zea::testing::WaitingCall waiting{
      .name = {}, .turn = turn, .stream = stream.number(), .meeters = {}};
  const auto meet = [&](const std::string& meeting, int rank) {
    if (rank != comm.rank)
      waiting.meeters.push_back(
          {std::hash<std::string>()(comm.meeting.name() + meeting), comm.meeting.process(rank)});
  };
  int64_t number = 0;
  for (const Call& call : calls) {
    const int from = is(call, "ncclSend") ? comm.rank : call.peer,
              to = is(call, "ncclSend") ? call.peer : comm.rank;
    number = is_message(call) ? ++comm.messages[{from, to}] : ++comm.collectives;
    const std::string text = " " + std::to_string(number);
    if (is_message(call))
      meet(" " + std::to_string(from) + ">" + std::to_string(to) + text, call.peer);
    else if (&call == &calls.front())
      for (int rank = 0; rank < comm.size; ++rank) meet(text, rank);
  }
  waiting.name = std::string(calls[0].name) + " #" + std::to_string(number) + " of " + comm.name;
  return waiting;
}

Stream& stream_of(const Call& call) {
  return call.stream == nullptr ? device().compute() : *reinterpret_cast<Stream*>(call.stream);
}

void note_uses(const Call& call, Stream& stream) {
  const size_t bytes = bytes_of(call), ranks = static_cast<size_t>(call.comm->size);
  const bool is_root = call.peer == call.comm->rank;
  const bool gathers = is(call, "ncclAllGather"), scatters = is(call, "ncclReduceScatter");
  device().begin(stream);
  const bool sends = call.send != nullptr && (is_root || !is(call, "ncclBroadcast"));
  if (sends && call.send != call.receive)
    device().uses(stream, call.send, scatters ? ranks * bytes : bytes, false, call.name);
  if (call.receive != nullptr && (is_root || !is(call, "ncclReduce")))
    device().uses(stream, call.receive, gathers ? ranks * bytes : bytes, true, call.name);
}

/// Each communicator's calls are one; NCCL wants all of a group in one stream, or ordered.
ncclResult_t launch(std::vector<Call> calls) {
  while (!calls.empty()) {
    const Call& first = calls.front();
    std::vector<Call> together, others;
    for (const Call& call : calls)
      (call.comm == first.comm && call.stream == first.stream ? together : others).push_back(call);
    ncclComm& comm = *first.comm;
    run_or_give_up(
        comm, [&] { comm.meeting.connect(messages_of(together)); }, [] { return std::string(); });
    if (comm.error != ncclSuccess) return comm.error;
    comm.streams.insert(&stream_of(first));
    if (first.stream != nullptr && stream_of(first).priority >= device().compute().priority)
      device().fail(std::string(first.name) + " in a stream that does not go before computation");
    for (const Call& call : together) device().count_launch(call.name);
    device().submit(stream_of(first), [together](Stream& stream) {
      for (const Call& call : together) note_uses(call, stream);
      const int64_t turn = device().launch_order().take();
      const int waiting = WaitTable::own().launch(numbered(together, stream, turn));
      stream.push(
          [together, &stream, turn, waiting] { run_in_order(together, stream, turn, waiting); });
    });
    calls = std::move(others);
  }
  return ncclSuccess;
}

/// Waits for the work in streams, all of which know that they are aborted.
void wait_for_aborted() {
  for (ncclComm_t comm : std::exchange(aborted, {}))
    for (Stream* stream : comm->streams) stream->drain();
}

ncclResult_t submit(const Call& call) {
  const void* used[] = {call.send, call.receive};
  for (const void* data : used)
    if (call.count > 0 && data != nullptr && device().open(data) == nullptr) {
      last_error = std::string(call.name) + " is given memory that is not the device's";
      return ncclInvalidArgument;
    }
  group.push_back(call);
  return group_depth > 0 ? ncclSuccess : launch(std::exchange(group, {}));
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = device().versions().nccl;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t code) {
  return code == ncclRemoteError ? "a rank failed, or called something else"
                                 : "a fault of the stand-in NCCL";
}
const char* ncclGetLastError(ncclComm_t) {
  return last_error.c_str();
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::random_device random;
  const std::string name = std::to_string(random()) + "-" + std::to_string(random());
  std::memset(id, 0, sizeof *id);
  std::memcpy(id->internal, name.data(), name.size());
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  try {
    *comm = new ncclComm(id.internal, rank, size, config);
    return ncclSuccess;
  } catch (const std::exception& error) {
    last_error = error.what();
    return ncclSystemError;
  }
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->meeting.abort();
  aborted.push_back(comm);
  if (group_depth == 0) wait_for_aborted();
  return ncclSuccess;  // whoever may still ask it: it is left to the end of the process
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  *state = comm->error;
  return ncclSuccess;
}
ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (group_depth == 1) wait_for_aborted();
  return --group_depth > 0 ? ncclSuccess : launch(std::exchange(group, {}));
}

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return submit({"ncclAllReduce", send, receive, count, type, op, -1, comm, stream});
}
ncclResult_t ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return submit({"ncclAllGather", send, receive, count, type, ncclSum, -1, comm, stream});
}
ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return submit({"ncclReduceScatter", send, receive, count, type, op, -1, comm, stream});
}
ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  return submit({"ncclBroadcast", send, receive, count, type, ncclSum, root, comm, stream});
}
ncclResult_t ncclReduce(const void* send, void* receive, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return submit({"ncclReduce", send, receive, count, type, op, root, comm, stream});
}
ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return submit({"ncclSend", data, nullptr, count, type, ncclSum, peer, comm, stream});
}
ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return submit({"ncclRecv", nullptr, data, count, type, ncclSum, peer, comm, stream});
}

}  // extern "C"
