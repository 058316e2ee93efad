// SPDX-License-Identifier: Apache-2.0
// The `__global__` launcher. An item of few elements has a warp, and a block has eight items; one
// of many has the block. Which it is depends on the elements alone, so sums are the same on every
// device.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>

#include "device/functor_lists.hpp"
#include "device/launch_items.hpp"
#include "zea/core/error.hpp"

namespace zea::detail {

inline constexpr int kWarp = 32;
inline constexpr int kBlock = 256;
inline constexpr int64_t kMostWarpElements = 1024;
inline constexpr int64_t kMostBlocks = int64_t{1} << 16;

/// A warp, or the block.
class ThreadTeam {
 public:
  /// `parts`: shared memory of the block, 8 bytes per warp.
  __device__ __forceinline__ ThreadTeam(int lanes, double* parts) : lanes_(lanes), parts_(parts) {}

  __device__ __forceinline__ int lanes() const { return lanes_; }
  __device__ __forceinline__ int lane() const {
    return static_cast<int>(threadIdx.x) & (lanes_ - 1);
  }
  __device__ __forceinline__ void sync() const {
    if (lanes_ == kWarp)
      __syncwarp();
    else
      __syncthreads();
  }

  template <class W, class Join>
  __device__ __forceinline__ W all(W value, const Join& join) const {
    for (int distance = kWarp / 2; distance > 0; distance /= 2)
      value = join(value, __shfl_xor_sync(0xffffffffu, value, distance));
    return lanes_ == kWarp ? value : of_warps(value, join);
  }

 private:
  template <class W, class Join>
  __device__ __forceinline__ W of_warps(W value, const Join& join) const {
    W* parts = reinterpret_cast<W*>(parts_);
    if (threadIdx.x % kWarp == 0) parts[threadIdx.x / kWarp] = value;
    __syncthreads();
    value = parts[0];
    for (int warp = 1; warp < kBlock / kWarp; ++warp) value = join(value, parts[warp]);
    __syncthreads();  // the next sum may use the memory
    return value;
  }

  int lanes_;
  double* parts_;
};

template <class Functor>
__global__ void __launch_bounds__(kBlock)
    run_items(const Functor functor, int64_t items, int lanes) {
  __shared__ double parts[kBlock / kWarp];
  const TeamLane<ThreadTeam> lane(ThreadTeam(lanes, parts));
  const int teams = kBlock / lanes;
  const int64_t step = int64_t{gridDim.x} * teams;
  for (int64_t item = int64_t{blockIdx.x} * teams + threadIdx.x / lanes; item < items; item += step)
    functor(lane, item);
}

/// Throws unless a kernel was launched.
void check_launch();

template <class Functor>
void launch_items(const Functor& functor, int64_t items, int64_t item_elements, void* stream) {
  if (items == 0) return;
  const int lanes = item_elements > kMostWarpElements ? kBlock : kWarp;
  const int64_t teams = kBlock / lanes, blocks = std::min((items + teams - 1) / teams, kMostBlocks);
  run_items<<<static_cast<unsigned>(blocks), kBlock, 0, static_cast<cudaStream_t>(stream)>>>(
      functor, items, lanes);
  check_launch();
}

}  // namespace zea::detail
