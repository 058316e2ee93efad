// SPDX-License-Identifier: Apache-2.0
// A microbatch on its way to the device: made on the host, all that units read of it in one block
// of pinned memory, so that one copy moves it, for which the host does not wait.
#pragma once

#include <optional>

#include "model/microbatch.hpp"

namespace zea {

struct PackedMicrobatch {
  Microbatch made;   ///< its tensors lie in the block, where that is there
  at::Tensor block;  ///< bytes in pinned memory; undefined where units read `made` as it is
};

/// Packs what was made on the host for `device`; nothing happens there. Any thread may.
PackedMicrobatch pack(Microbatch made, at::Device device);

/// Starts the copy to the device, before what is computed there from now on: in `copies`, beside
/// what it was given before, or in the stream that computes.
Microbatch move_to(at::Device device, PackedMicrobatch packed,
                   std::optional<c10::Stream> copies = {});

/// A microbatch like one on a device, in a block that is its own: the blocks of later ones that are
/// laid out alike may be copied into it.
Microbatch with_own_block(Microbatch on_device);

/// Whether units do the same with the two, on a device, and their blocks have the same tensors at
/// the same places.
bool is_laid_out_alike(Microbatch a, Microbatch b);

}  // namespace zea
