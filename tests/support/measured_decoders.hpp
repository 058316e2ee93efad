// SPDX-License-Identifier: Apache-2.0
// Configs of decoders among the measured models.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace zea::testing::measured {

std::string phi3_config();
std::string decoder_config(const std::string& family, bool is_tied);
nlohmann::json gemma4_config();
std::string gemma4_e4b_config();
std::string seeing_gemma4_config(bool clips, bool is_like_e4b = false);
std::string hearing_gemma4_config(bool clips);
std::string gemma4_experts_config();
std::string moe_config(const std::string& family);
std::string glm_config();
std::string deepseek_config();
std::string gpt_oss_config();

}  // namespace zea::testing::measured
