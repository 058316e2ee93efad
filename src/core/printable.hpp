// SPDX-License-Identifier: Apache-2.0
// What programs print may hold texts of files that others made: names of tensors, of files, of
// keys. Here they lose what a terminal would take for orders.
#pragma once

#include <string>

namespace zea {

/// `text` with each byte of a control character (C0 but tabs and, unless `is_line`, line ends; C1;
/// those that turn the direction of writing), and each that is not UTF-8, as "\x1b".
std::string printable(const std::string& text, bool is_line = false);

bool is_utf8(const std::string& text);

}  // namespace zea
