// SPDX-License-Identifier: Apache-2.0
// The stand-in device finds all kinds of faults: each is planted once, and not found where the
// order is right.
#include <cuda_runtime.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <chrono>
#include <functional>
#include <thread>

#include "core/error.hpp"
#include "device/device.hpp"
#include "device/meeting.hpp"
#include "kernels/device/functor_lists.hpp"
#include "kernels/device/launch_items.hpp"
#include "support/mpi_main.hpp"

namespace zea::testing::test_stand_in {
namespace {

void* compute_stream() {
  return nullptr;
}

/// Memory of the device, freed by the end.
class Buffer {
 public:
  explicit Buffer(size_t bytes) { cudaMalloc(&data_, bytes); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
    if (data_ != nullptr) cudaFree(data_);
  }
  void* data() const { return data_; }
  void free() { cudaFree(std::exchange(data_, nullptr)); }

 private:
  void* data_ = nullptr;
};

cudaStream_t new_stream() {
  cudaStream_t stream = nullptr;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  return stream;
}

void write(const Buffer& buffer, size_t bytes, cudaStream_t stream) {
  const std::string zeros(bytes, 0);
  cudaMemcpyAsync(buffer.data(), zeros.data(), bytes, cudaMemcpyHostToDevice, stream);
}

std::string read(const Buffer& buffer, size_t bytes, cudaStream_t stream) {
  std::string host(bytes, 1);
  cudaMemcpyAsync(host.data(), buffer.data(), bytes, cudaMemcpyDeviceToHost, stream);
  return host;
}

std::string faults() {
  std::string all;
  for (const std::string& fault : device().take_faults()) all += fault + "\n";
  return all;
}

void expect_fault(const std::string& part) {
  const std::string found = faults();
  EXPECT_NE(found.find(part), std::string::npos) << "found: " << found;
}

/// As the host sees it, including errors in the meantime.
void finish(Pending& pending) {
  while (!pending.test()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  pending.wait();
}

TEST(StandIn, KillsTheHostThatTouchesItsMemory) {
  if (world().size() > 1) GTEST_SKIP() << "once is enough";
  const Buffer buffer(8);
  EXPECT_DEATH(*static_cast<volatile char*>(buffer.data()) = 1,
               "the host touches the device's memory");
}

TEST(StandIn, KillsTheHostThatWritesWhatACopyStillReads) {
  if (world().size() > 1) GTEST_SKIP() << "once is enough";
  char* pinned = static_cast<char*>(device().allocate_pinned(8));
  device().hold(pinned, device().compute(), false);
  EXPECT_EQ(pinned[0], 0);
  EXPECT_DEATH(*static_cast<volatile char*>(pinned) = 1, "pinned memory that a copy still uses");
  device().host_sees(device().compute().clock());
  pinned[0] = 1;
  device().free_pinned(pinned);
}

TEST(StandIn, FindsStreamsThatNothingOrders) {
  const Buffer buffer(64);
  cudaStream_t one = new_stream(), other = new_stream();
  write(buffer, 64, one);
  EXPECT_EQ(faults(), "");
  read(buffer, 16, other);
  expect_fault("reads bytes 0 to 16 that cudaMemcpyAsync");
  cudaStreamDestroy(one);
  cudaStreamDestroy(other);
}

TEST(StandIn, IsContentWithAnEventBetweenThem) {
  const Buffer buffer(64);
  cudaStream_t one = new_stream(), other = new_stream();
  cudaEvent_t event = nullptr;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  write(buffer, 64, one);
  cudaEventRecord(event, one);
  cudaStreamWaitEvent(other, event, 0);
  EXPECT_EQ(read(buffer, 64, other), std::string(64, 0));
  EXPECT_EQ(faults(), "");
  cudaEventDestroy(event);
  cudaStreamDestroy(one);
  cudaStreamDestroy(other);
}

TEST(StandIn, ReadsOfOneTimeNeedNoOrder) {
  const Buffer buffer(64);
  cudaStream_t one = new_stream(), other = new_stream();
  write(buffer, 64, one);
  cudaStreamSynchronize(one);
  read(buffer, 64, one);
  read(buffer, 64, other);
  EXPECT_EQ(faults(), "");
  cudaStreamDestroy(one);
  cudaStreamDestroy(other);
}

TEST(StandIn, FindsMemoryUsedAfterItWasFreed) {
  Buffer buffer(64);
  void* data = buffer.data();
  buffer.free();
  cudaMemcpyAsync(data, "x", 1, cudaMemcpyHostToDevice, nullptr);
  expect_fault("uses memory that was freed");
}

/// As libtorch frees a tensor that another stream still reads.
TEST(StandIn, FindsMemoryFreedWhileAnotherStreamUsesIt) {
  void* data = device().allocate(64);
  cudaStream_t other = new_stream();
  cudaMemcpyAsync(data, "x", 1, cudaMemcpyHostToDevice, other);
  device().free_in_order(data, device().compute());
  expect_fault("the next owner of freed memory in stream 0 writes");
  cudaStreamDestroy(other);
}

TEST(StandIn, FindsUsesBeyondAnAllocation) {
  const Buffer buffer(64);
  cudaMemcpyAsync(static_cast<char*>(buffer.data()) + 60, "eight...", 8, cudaMemcpyHostToDevice,
                  nullptr);
  expect_fault("uses bytes 60 to 68 of an allocation of 64");
}

/// zea's own gates of a row of `width`, four bytes an element: reads 2 * width, writes width.
void gate(const void* x, void* y, int64_t width, cudaStream_t stream = nullptr) {
  using Gate = detail::GatedRow<detail::SiluGate, float>;
  detail::launch_items(Gate{static_cast<const float*>(x), static_cast<float*>(y), width}, 1, width,
                       stream);
}

TEST(StandIn, FindsAFunctorThatReadsWhatNothingOrders) {
  const Buffer x(64), y(32);
  cudaStream_t other = new_stream();
  write(x, 64, other);
  gate(x.data(), y.data(), 4, other);
  EXPECT_EQ(faults(), "") << "they are of one stream";
  gate(x.data(), y.data(), 8);
  const std::string found = faults();
  EXPECT_NE(found.find("SiluGate"), std::string::npos) << found;
  EXPECT_NE(found.find("in stream 0 reads bytes 0 to 64 that cudaMemcpyAsync"), std::string::npos)
      << found;
  EXPECT_NE(found.find("in stream 0 writes bytes 0 to 32 that"), std::string::npos) << found;
  cudaStreamDestroy(other);
}

TEST(StandIn, FindsReadsOfWhatAFunctorWrites) {
  const Buffer x(64), y(64);
  cudaStream_t other = new_stream();
  write(x, 64, nullptr);
  write(y, 64, nullptr);
  cudaStreamSynchronize(nullptr);
  gate(x.data(), y.data(), 4);
  cudaMemsetAsync(static_cast<char*>(y.data()) + 16, 0, 48, other);
  cudaMemsetAsync(static_cast<char*>(x.data()) + 32, 0, 32, other);
  EXPECT_EQ(faults(), "") << "it reads 32 bytes and writes 16";
  read(y, 16, other);
  expect_fault("reads bytes 0 to 16 that zea::detail::GatedRow");
  cudaMemsetAsync(x.data(), 0, 32, other);
  expect_fault("writes bytes 0 to 32 that zea::detail::GatedRow");
  cudaStreamDestroy(other);
}

TEST(StandIn, FindsFunctorsInMemoryThatIsNotTheirs) {
  const Buffer x(64), y(32);
  write(x, 64, nullptr);
  Buffer freed(32);
  void* data = freed.data();
  freed.free();
  gate(x.data(), data, 8);
  expect_fault("uses memory that was freed");
  const Buffer small(28), large(1024);
  gate(x.data(), small.data(), 8);
  expect_fault("uses bytes 0 to 32 of an allocation of 28");
  const std::vector<float> host(16);
  gate(host.data(), y.data(), 8);
  expect_fault("is given memory that is not the device's");
  gate(x.data(), y.data(), 8);
  EXPECT_EQ(faults(), "");
}

TEST(StandIn, NcclRefusesMemoryOfTheHost) {
  const std::unique_ptr<Collectives> all =
      make_nccl_collectives(world().communicator(), compute_stream);
  double host = 1;
  EXPECT_THROW(all->all_reduce(&host, 1, DType::Float64, ReduceOp::Sum), CommError);
}

TEST(StandIn, FindsAResultThatIsNotWaitedFor) {
  const std::unique_ptr<Collectives> all =
      make_nccl_collectives(world().communicator(), compute_stream);
  const Buffer buffer(64);
  write(buffer, 64, nullptr);
  Pending sum = all->all_reduce(buffer.data(), 8, DType::Float64, ReduceOp::Sum);
  read(buffer, 64, nullptr);
  expect_fault("cudaMemcpyAsync in stream 0 reads bytes 0 to 64 that ncclAllReduce");
  sum.wait();
  EXPECT_EQ(read(buffer, 64, nullptr), std::string(64, 0));
  EXPECT_EQ(faults(), "");
}

/// A rank sees the other's call, or that the other has given up since it saw this rank's.
void expect_mismatch(const std::string& call) {
  const std::string found = faults();
  EXPECT_TRUE(found.find("calls " + call) != std::string::npos ||
              found.find("gave the communicator up") != std::string::npos)
      << call << " was not found in: " << found;
}

TEST(StandIn, NamesRanksThatCallDifferentThings) {
  if (world().size() == 1) GTEST_SKIP() << "needs two ranks";
  const bool is_first = world().rank() == 0;
  const Buffer buffer(64), gathered(256);
  write(buffer, 64, nullptr);
  write(gathered, 256, nullptr);
  const auto sum = [&](Collectives& all, int64_t count, DType type, ReduceOp op) {
    return all.all_reduce(buffer.data(), count, type, op);
  };
  const struct {
    const char* call;  ///< of the second rank
    std::function<Pending(Collectives&)> start;
  } planted[] = {
      {"ncclAllReduce of 7 of type 8",
       [&](Collectives& all) { return sum(all, is_first ? 8 : 7, DType::Float64, ReduceOp::Sum); }},
      {"ncclAllReduce of 8 of type 7",
       [&](Collectives& all) {
         return sum(all, 8, is_first ? DType::Float64 : DType::Float32, ReduceOp::Sum);
       }},
      {"ncclAllReduce of 8 of type 8, operation 2",
       [&](Collectives& all) {
         return sum(all, 8, DType::Float64, is_first ? ReduceOp::Sum : ReduceOp::Max);
       }},
      {"ncclBroadcast of 8 of type 8, root 1",
       [&](Collectives& all) {
         return all.broadcast(buffer.data(), 8, DType::Float64, is_first ? 0 : 1);
       }},
      {"ncclAllGather of 8 of type 8",
       [&](Collectives& all) {
         return is_first
                    ? sum(all, 8, DType::Float64, ReduceOp::Sum)
                    : all.all_gather(buffer.data(), gathered.data(), Counts(2, 8), DType::Float64);
       }},
  };
  for (const auto& [call, start] : planted) {
    const std::unique_ptr<Collectives> all =
        make_nccl_collectives(world().communicator(), compute_stream);
    Pending pending = start(*all);
    EXPECT_THROW(finish(pending), CommError) << call;
    expect_mismatch(call);
  }
}

/// Calls of one communicator follow the order of the first rank.
TEST(StandIn, NamesCallsOfAGroupInAnotherOrder) {
  if (world().size() == 1) GTEST_SKIP() << "needs two ranks";
  const Communicator ranks = world().communicator();
  ncclUniqueId id = {};
  if (ranks.rank() == 0) ncclGetUniqueId(&id);
  MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, ranks.handle());
  ncclComm_t comm = nullptr;
  ncclCommInitRankConfig(&comm, ranks.size(), id, ranks.rank(), nullptr);
  const Buffer one(64), other(64);
  write(one, 64, nullptr);
  write(other, 64, nullptr);
  const auto start = [&](bool longer_first) {
    ncclGroupStart();
    for (const bool is_longer : {longer_first, !longer_first}) {
      const Buffer& buffer = is_longer ? one : other;
      ncclAllReduce(buffer.data(), buffer.data(), is_longer ? 8 : 4, ncclFloat64, ncclSum, comm,
                    nullptr);
    }
    ncclGroupEnd();
    device().compute().drain();
  };
  start(true);
  EXPECT_EQ(faults(), "");
  start(ranks.rank() == 0);
  expect_mismatch(ranks.rank() == 0 ? "ncclAllReduce of 8" : "ncclAllReduce of 4");
  ncclCommAbort(comm);
}

TEST(StandIn, NamesACallThatDoesNotGoBeforeComputation) {
  if (world().size() == 1) GTEST_SKIP() << "needs two ranks";
  const std::unique_ptr<Collectives> all =
      make_nccl_collectives(world().communicator(), compute_stream);
  const Buffer buffer(64);
  write(buffer, 64, nullptr);
  all->all_reduce(buffer.data(), 8, DType::Float64, ReduceOp::Sum).wait();
  EXPECT_EQ(faults(), "");
  ncclUniqueId id = {};
  if (world().rank() == 0) ncclGetUniqueId(&id);
  MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, world().communicator().handle());
  ncclComm_t comm = nullptr;
  ncclCommInitRankConfig(&comm, world().size(), id, world().rank(), nullptr);
  cudaStream_t slow = new_stream();
  device().compute().drain();
  ncclAllReduce(buffer.data(), buffer.data(), 8, ncclFloat64, ncclSum, comm, slow);
  cudaStreamSynchronize(slow);
  expect_fault("ncclAllReduce in a stream that does not go before computation");
  cudaStreamDestroy(slow);
  ncclCommDestroy(comm);
}

/// On a device that runs communicators one at a time: each rank waits in that which it came to
/// first, until one gives up.
TEST(StandIn, NamesCommunicatorsInAnotherOrder) {
  if (world().size() == 1) GTEST_SKIP() << "needs two ranks";
  const Buffer one(64), other(64);
  write(one, 64, nullptr);
  write(other, 64, nullptr);
  device().take_turns(true);
  const auto run = [&](bool one_first, std::chrono::milliseconds patience) {
    const auto make = [] { return make_nccl_collectives(world().communicator(), compute_stream); };
    const std::unique_ptr<Collectives> of_one = make(), of_other = make();
    set_patience(patience);
    std::vector<Pending> pending;
    for (const bool is_one : {one_first, !one_first})
      pending.push_back((is_one ? of_one : of_other)
                            ->all_reduce(is_one ? one.data() : other.data(), is_one ? 8 : 4,
                                         DType::Float64, ReduceOp::Sum));
    int failed = 0;
    for (Pending& call : pending) try {
        finish(call);
      } catch (const CommError&) {
        ++failed;
      }
    return failed;
  };
  EXPECT_EQ(run(true, kUsualPatience), 0);
  EXPECT_EQ(faults(), "");
  const bool is_first = world().rank() == 0;
  EXPECT_GT(run(is_first, std::chrono::milliseconds(500)), 0);
  set_patience(kUsualPatience);
  device().take_turns(false);
  const std::string found = faults();
  const bool is_named =
      found.find(is_first ? "rank 0 waits in ncclAllReduce of 8 of type 8 for ranks 1"
                          : "rank 1 waits in ncclAllReduce of 4 of type 8 for ranks 0") !=
      std::string::npos;
  EXPECT_TRUE(is_named || found.find("gave the communicator up") != std::string::npos) << found;
  int64_t named = is_named ? 1 : 0;
  make_mpi_collectives(world().communicator())
      ->all_reduce(&named, 1, DType::Int64, ReduceOp::Sum)
      .wait();
  EXPECT_GT(named, 0);
}

TEST(StandIn, NamesMessagesOfAGroupInAnotherOrder) {
  if (world().size() == 1) GTEST_SKIP() << "needs two ranks";
  const std::unique_ptr<Collectives> all =
      make_nccl_collectives(world().communicator(), compute_stream);
  const Buffer one(64), other(64);
  write(one, 64, nullptr);
  write(other, 64, nullptr);
  const int peer = 1 - world().rank();
  const Message longer{one.data(), 8, DType::Float64, peer},
      shorter{other.data(), 4, DType::Float64, peer};
  Pending exchange = world().rank() == 0 ? all->exchange({longer, shorter}, {})
                                         : all->exchange({}, {shorter, longer});
  EXPECT_THROW(finish(exchange), CommError);
  expect_fault(world().rank() == 1 ? "receives 4 of type 8 from rank 0, which sends 8 of type 8"
                                   : "gave the communicator up");
}

TEST(StandIn, NamesAMessageOfAnotherLength) {
  if (world().size() == 1) GTEST_SKIP() << "needs two ranks";
  const std::unique_ptr<Collectives> all =
      make_nccl_collectives(world().communicator(), compute_stream);
  const Buffer buffer(64);
  write(buffer, 64, nullptr);
  Pending message = world().rank() == 0 ? all->send(buffer.data(), 8, DType::Float64, 1)
                                        : all->recv(buffer.data(), 4, DType::Float64, 0);
  if (world().rank() == 1) {
    EXPECT_THROW(finish(message), CommError);
    expect_fault("receives 4 of type 8 from rank 0, which sends 8 of type 8");
  }
  world().communicator().duplicate("met");
  faults();
}

}  // namespace
}  // namespace zea::testing::test_stand_in
