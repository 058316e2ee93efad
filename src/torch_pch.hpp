// SPDX-License-Identifier: Apache-2.0
// The engine's precompiled header: libtorch and the standard library. Sources still include what
// they use.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>
