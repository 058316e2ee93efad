// SPDX-License-Identifier: Apache-2.0
#include "deck/hardware.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "core/error.hpp"
#include "core/text.hpp"
#include "deck/key_table.hpp"
#include "deck/store_value.hpp"

namespace zea {
namespace {

constexpr double kGiga = 1e9, kTera = 1e12;

std::vector<Key> keys_of(Hardware& hardware) {
  std::vector<Key> keys;
  hardware.visit_sections([&](const char* section, auto& members) {
    members.visit([&](auto& member, KeyInfo info) {
      if constexpr (requires { member.names(); })
        info.allowed.assign(member.names().begin(), member.names().end());
      keys.push_back({section, std::move(info), &member});
    });
  });
  return keys;
}

class HardwareReader {
 public:
  HardwareReader(const HardwareReader&) = delete;  // keys_ points into hardware_
  HardwareReader& operator=(const HardwareReader&) = delete;
  explicit HardwareReader(std::string name) : name_(std::move(name)), keys_(keys_of(hardware_)) {}

  Hardware read(const std::string& text) {
    check_toml_text("hardware file", name_, text);
    try {
      read_tables(toml::parse(text, name_));
    } catch (const toml::parse_error& error) {
      fault_at(error.source(), "not TOML: " + shown(std::string(error.description()), 320));
      throw DeckError(faults_);
    }
    check_missing();
    check_gemms();
    if (!faults_.empty()) throw DeckError(faults_);
    return hardware_;
  }

 private:
  void read_tables(const toml::table& table) {
    std::vector<std::string> sections;
    for (const Key& key : keys_)
      if (sections.empty() || sections.back() != key.section) sections.push_back(key.section);
    for (const auto& [name, node] : table) {
      const std::string section(name.str());
      const bool is_known = std::ranges::count(sections, section) > 0;
      if (is_known && node.is_table())
        read_section(section, *node.as_table());
      else
        fault_at(name.source(), shown(section) + (is_known ? " is a section" : " is no section") +
                                    "; the sections of a hardware file are [" +
                                    join(sections, "], [") + "]");
    }
  }

  void read_section(const std::string& section, const toml::table& table) {
    for (const auto& [name, node] : table) {
      const std::string path = section + "." + std::string(name.str());
      const auto key = std::ranges::find(keys_, path, &Key::path);
      if (key == keys_.end()) {
        fault_at(name.source(), shown(path) + " is not a key; " + key_advice(path, keys_));
        continue;
      }
      given_.insert(path);
      if (const auto fault = store_value(*key, node)) fault_at(fault->where, fault->text);
    }
  }

  /// A key that does not take its default has to be given.
  void check_missing() {
    for (const Key& key : keys_) {
      const bool is_number = std::holds_alternative<double*>(key.member) ||
                             std::holds_alternative<int64_t*>(key.member);
      const bool is_list = std::holds_alternative<std::vector<double>*>(key.member);
      if (is_list || (is_number && key.info.range.min > 0)) require(key);
    }
    for (const Key& key : keys_)
      if (key.path() == "hardware.name" || key.path() == "hardware.source") require(key);
    const DeviceRates& device = hardware_.device;
    if (device.bf16_tflops == 0 && device.fp32_tflops == 0 && device.fp64_tflops == 0)
      add("[device] has no peak; give bf16_tflops, fp32_tflops or fp64_tflops (" + name_ + ")");
  }

  void require(const Key& key) {
    if (!given_.contains(key.path()))
      add(key.path() + " is missing: " + key.info.help + " (" + name_ + ")");
  }

  void check_gemms() {
    const std::vector<double>& dims = hardware_.device.gemm_dims;
    const size_t shares = hardware_.device.gemm_efficiency.size();
    if (dims.size() != shares || dims.empty())
      add("device.gemm_dims has " + std::to_string(dims.size()) +
          " entries and device.gemm_efficiency " + std::to_string(shares) +
          "; give equally many of both, at least one (" + name_ + ")");
    else if (std::ranges::adjacent_find(dims, std::greater_equal()) != dims.end())
      add("device.gemm_dims must be ascending (" + name_ + ")");
    else
      check_growth(dims, hardware_.device.gemm_efficiency);
  }

  /// Larger GEMMs take longer, and not at a lower rate: searches rely on both.
  void check_growth(const std::vector<double>& dims, const std::vector<double>& shares) {
    for (size_t i = 1; i < dims.size(); ++i)
      if (shares[i] < shares[i - 1] || shares[i] / dims[i] > shares[i - 1] / dims[i - 1])
        add("device.gemm_efficiency goes from " + toml_text(shares[i - 1]) + " to " +
            toml_text(shares[i]) + "; it must not fall, nor grow faster than gemm_dims (" + name_ +
            ")");
  }

  void fault_at(const toml::source_region& where, const std::string& text) {
    add(text + " (" + name_ + ":" + std::to_string(where.begin.line) + ":" +
        std::to_string(where.begin.column) + ")");
  }
  void add(const std::string& fault) { faults_ += (faults_.empty() ? "" : "\n") + fault; }

  std::string name_;
  Hardware hardware_;
  std::vector<Key> keys_;
  std::set<std::string> given_;
  std::string faults_;
};

}  // namespace

double DeviceRates::peak(DType type) const {
  if (type == DType::BFloat16) return kTera * bf16_tflops;
  if (type == DType::Float32) return kTera * fp32_tflops;
  return type == DType::Float64 ? kTera * fp64_tflops : 0;
}

double DeviceRates::gemm_share(double dim) const {
  const auto next = std::ranges::lower_bound(gemm_dims, dim);
  if (next == gemm_dims.begin()) return gemm_efficiency.front();
  if (next == gemm_dims.end()) return gemm_efficiency.back();
  const size_t i = static_cast<size_t>(next - gemm_dims.begin());
  const double part =
      std::log2(dim / gemm_dims[i - 1]) / std::log2(gemm_dims[i] / gemm_dims[i - 1]);
  return gemm_efficiency[i - 1] + part * (gemm_efficiency[i] - gemm_efficiency[i - 1]);
}

double LinkRates::rate(CollectiveKind kind) const {
  const double own[] = {all_gather_gb_per_s, reduce_scatter_gb_per_s, all_reduce_gb_per_s,
                        all_to_all_gb_per_s, send_gb_per_s};
  const double asked = own[static_cast<int>(kind)];
  return kGiga * (asked > 0 ? asked : gb_per_s);
}

Hardware parse_hardware(const std::string& text, const std::string& name) {
  return HardwareReader(name).read(text);
}

Hardware read_hardware(const std::string& path) {
  return parse_hardware(read_toml_text("hardware file", path), path);
}

std::string hardware_text(const Hardware& hardware) {
  Hardware copy = hardware;
  std::string text, section;
  for (const Key& key : keys_of(copy)) {
    if (key.section != section) text += (text.empty() ? "[" : "\n[") + key.section + "]\n";
    section = key.section;
    text +=
        std::string(key.info.name) + " = " + toml_text(key.member) + "  # " + key.info.help + "\n";
  }
  return text;
}

std::string hardware_reference() {
  Hardware hardware;
  std::string text, section;
  for (const Key& key : keys_of(hardware)) {
    if (key.section != section) text += (text.empty() ? "[" : "\n[") + key.section + "]\n";
    section = key.section;
    const std::string allowed = allowed_values(key);
    text += "  " + std::string(key.info.name) + ": " + key.info.help +
            (allowed.empty() ? "" : " (" + allowed + ")") + "\n";
  }
  return text;
}

}  // namespace zea
