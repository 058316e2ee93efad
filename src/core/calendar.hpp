// SPDX-License-Identifier: Apache-2.0
// The time of day, which may be set, and may differ from that of other machines.
#pragma once

namespace zea {

/// Seconds since 1970.
double calendar_seconds();

}  // namespace zea
