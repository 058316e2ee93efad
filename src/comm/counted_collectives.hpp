// SPDX-License-Identifier: Apache-2.0
// Collectives that count what their rank sends and pass every call on. Several may stand before one
// communicator, so that each name that a group goes by has an account of its own.
#pragma once

#include <cstdint>
#include <memory>

#include "comm/collectives.hpp"

namespace zea {

/// Adds to `sent_bytes` what this rank sends in each call, as plan/collective_volume.hpp says;
/// messages of send and exchange in full, barriers nothing. `real` and `sent_bytes` outlive it.
std::unique_ptr<Collectives> make_counted_collectives(Collectives& real, int64_t& sent_bytes);

}  // namespace zea
