// SPDX-License-Identifier: Apache-2.0
// Parity: every operation on device memory over NCCL gives the result of the MPI collectives on
// host memory. Small whole numbers, so that sums are exact in every type whatever their order.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <functional>
#include <numeric>

#include "comm/visible_gpus.hpp"
#include "core/error.hpp"
#include "support/mpi_main.hpp"

namespace zea::test_nccl_collectives {
namespace {

using Bytes = std::vector<std::byte>;

cudaStream_t compute = nullptr;  // made by the first test, as the engine has one

void* compute_stream() {
  return compute;
}

void require(cudaError_t code) {
  if (code != cudaSuccess) throw CommError(cudaGetErrorString(code));
}

/// Device memory with the contents of host memory, moved on the compute stream.
class OnDevice {
 public:
  explicit OnDevice(const Bytes& host) : bytes_(host.size()) {
    require(cudaMalloc(&data_, bytes_ + 1));
    require(cudaMemcpyAsync(data_, host.data(), bytes_, cudaMemcpyHostToDevice, compute));
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() { cudaFree(data_); }

  char* data() const { return static_cast<char*>(data_); }
  Bytes fetch() const {
    Bytes host(bytes_);
    require(cudaMemcpyAsync(host.data(), data_, bytes_, cudaMemcpyDeviceToHost, compute));
    require(cudaStreamSynchronize(compute));
    return host;
  }

 private:
  size_t bytes_;
  void* data_ = nullptr;
};

Bytes numbers(DType dtype, int64_t count, int seed) {
  Bytes data(count * element_bytes(dtype));
  for (int64_t i = 0; i < count; ++i) {
    const double value = static_cast<double>((5 * i + 7 * seed) % 19);
    std::byte* element = data.data() + i * element_bytes(dtype);
    if (is_floating(dtype))
      convert_elements(DType::Float64, &value, dtype, element, 1);
    else
      *element = static_cast<std::byte>(value);  // the lowest byte of a zeroed integer
  }
  return data;
}

constexpr DType kAll[] = {DType::Float64, DType::Float32, DType::BFloat16, DType::Float16,
                          DType::Int64,   DType::Int32,   DType::UInt8};

class NcclTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (num_cuda_devices() == 0) GTEST_SKIP() << "no GPU";
    const int rank = testing::world().local_rank(), gpus = num_cuda_devices();
    if (testing::world().local_size() > gpus) set_nccl_host_id(rank);
    require(cudaSetDevice(rank % gpus));
    if (!compute) require(cudaStreamCreateWithFlags(&compute, cudaStreamNonBlocking));
    host_ = make_mpi_collectives(communicator_);
    device_ = make_nccl_collectives(communicator_, compute_stream);
  }

  int rank() const { return communicator_.rank(); }
  int size() const { return communicator_.size(); }

  /// Runs `call` on host and on device with the same input, and expects the same output.
  void expect_parity(const Bytes& input, size_t output_bytes,
                     const std::function<Pending(Collectives&, void*, void*)>& call) {
    Bytes sent = input;
    Bytes expected(output_bytes);
    const OnDevice sent_on_device(input);
    const OnDevice received_on_device(expected);

    call(*host_, sent.data(), expected.data()).wait();
    call(*device_, sent_on_device.data(), received_on_device.data()).wait();

    EXPECT_EQ(received_on_device.fetch(), expected);
    EXPECT_EQ(sent_on_device.fetch(), sent);
  }

  std::vector<Counts> counts_of_interest() const {
    Counts uneven;
    for (int r = 0; r < size(); ++r) uneven.push_back(r == 1 ? 0 : 300 + 17 * r);
    return {Counts(size(), 256), uneven};
  }

  static int64_t total(const Counts& counts) {
    return std::accumulate(counts.begin(), counts.end(), int64_t{0});
  }

  Collectives& device() { return *device_; }

 private:
  Communicator communicator_ = testing::world().communicator();
  std::unique_ptr<Collectives> host_, device_;
};

TEST_F(NcclTest, AllReduce) {
  for (DType dtype : kAll)
    for (ReduceOp op : {ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min})
      expect_parity(numbers(dtype, 1000, rank()), 0, [&](Collectives& all, void* data, void*) {
        return all.all_reduce(data, 1000, dtype, op);
      });
}

TEST_F(NcclTest, AllGather) {
  for (DType dtype : kAll)
    for (const Counts& counts : counts_of_interest())
      expect_parity(numbers(dtype, counts[rank()], rank()), total(counts) * element_bytes(dtype),
                    [&](Collectives& all, void* send, void* receive) {
                      return all.all_gather(send, receive, counts, dtype);
                    });
}

TEST_F(NcclTest, ReduceScatter) {
  for (DType dtype : kAll)
    for (const Counts& counts : counts_of_interest())
      expect_parity(numbers(dtype, total(counts), rank()), counts[rank()] * element_bytes(dtype),
                    [&](Collectives& all, void* send, void* receive) {
                      return all.reduce_scatter(send, receive, counts, dtype);
                    });
}

TEST_F(NcclTest, AllToAll) {
  Counts sends, receives;
  for (int r = 0; r < size(); ++r) {
    sends.push_back(10 * rank() + 3 * r + 1);
    receives.push_back(10 * r + 3 * rank() + 1);
  }
  expect_parity(numbers(DType::Float32, total(sends), rank()), total(receives) * 4,
                [&](Collectives& all, void* send, void* receive) {
                  return all.all_to_all(send, sends, receive, receives, DType::Float32);
                });
}

TEST_F(NcclTest, BroadcastAndGather) {
  for (int root = 0; root < size(); ++root)
    for (const Counts& counts : counts_of_interest()) {
      const int64_t at_root = rank() == root ? total(counts) : 0;
      expect_parity(numbers(DType::Int32, 50, rank()), 0, [&](Collectives& all, void* data, void*) {
        return all.broadcast(data, 50, DType::Int32, root);
      });
      expect_parity(numbers(DType::Int64, counts[rank()], rank()), at_root * 8,
                    [&](Collectives& all, void* send, void* receive) {
                      return all.gather(send, receive, counts, DType::Int64, root);
                    });
    }
}

TEST_F(NcclTest, NeighboursExchange) {
  const int peer = (rank() ^ 1) < size() ? rank() ^ 1 : rank();
  expect_parity(numbers(DType::BFloat16, 500, rank()), 1000,
                [&](Collectives& all, void* send, void* receive) {
                  return all.exchange({{send, 500, DType::BFloat16, peer}},
                                      {{receive, 500, DType::BFloat16, peer}});
                });
}

TEST_F(NcclTest, CommunicationWaitsForComputationAndTheOtherWayRound) {
  constexpr size_t kBytes = size_t{64} << 20;
  const OnDevice data{Bytes(kBytes)};
  require(cudaMemsetAsync(data.data(), 1, kBytes, compute));

  Pending summing = device().all_reduce(data.data(), kBytes, DType::UInt8, ReduceOp::Sum);
  summing.wait();
  const Bytes fetched = data.fetch();
  while (!summing.test()) continue;

  EXPECT_EQ(fetched, Bytes(kBytes, static_cast<std::byte>(size())));
}

}  // namespace
}  // namespace zea::test_nccl_collectives
