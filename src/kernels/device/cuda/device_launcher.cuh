// SPDX-License-Identifier: Apache-2.0
// The `__global__` launcher. An item has a lane for each of its packs, up to a warp; one of many
// packs has a block, of which those of fewer share one. How many lanes it has depends on the packs
// alone, so sums are the same on every device.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/device/functor_lists.hpp"
#include "kernels/device/launch_items.hpp"
#include "core/error.hpp"

namespace zea::detail {

inline constexpr int kWarp = 32;
inline constexpr int kBlock = 256;
inline constexpr int kLeastLanes = 4;
inline constexpr int64_t kMostWarpPacks = kBlock;  ///< of more, each lane of a block has some
inline constexpr int64_t kMostBlocks = int64_t{1} << 16;

/// A part of a warp, of a power of two; a warp; or the block.
class ThreadTeam {
 public:
  /// `parts`: shared memory of the block, 8 bytes per warp.
  __device__ __forceinline__ ThreadTeam(int lanes, double* parts) : lanes_(lanes), parts_(parts) {}

  __device__ __forceinline__ int lanes() const { return lanes_; }
  __device__ __forceinline__ int lane() const {
    return static_cast<int>(threadIdx.x) & (lanes_ - 1);
  }
  __device__ __forceinline__ void sync() const {
    if (lanes_ > kWarp)
      __syncthreads();
    else
      __syncwarp(of_warp());
  }

  template <class W, class Join>
  __device__ __forceinline__ W all(W value, const Join& join) const {
    for (int distance = (lanes_ < kWarp ? lanes_ : kWarp) / 2; distance > 0; distance /= 2)
      value = join(value, __shfl_xor_sync(of_warp(), value, distance));
    return lanes_ > kWarp ? of_warps(value, join) : value;
  }

 private:
  /// The warp's threads that belong to the team, one bit each.
  __device__ __forceinline__ unsigned of_warp() const {
    if (lanes_ >= kWarp) return 0xffffffffu;
    return ((1u << lanes_) - 1) << (threadIdx.x % kWarp / lanes_ * lanes_);
  }

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

inline int lanes_of(int64_t item_packs) {
  if (item_packs > kMostWarpPacks) return kBlock;
  int lanes = kLeastLanes;
  while (lanes < kWarp && lanes < item_packs) lanes *= 2;
  return lanes;
}

/// Throws unless a kernel was launched.
void check_launch();

template <class Functor>
void launch_items(const Functor& functor, int64_t items, int64_t item_packs, void* stream) {
  if (items == 0) return;
  const int lanes = lanes_of(item_packs);
  const int64_t teams = kBlock / lanes, blocks = std::min((items + teams - 1) / teams, kMostBlocks);
  run_items<<<static_cast<unsigned>(blocks), kBlock, 0, static_cast<cudaStream_t>(stream)>>>(
      functor, items, lanes);
  check_launch();
}

}  // namespace zea::detail
