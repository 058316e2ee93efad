// SPDX-License-Identifier: Apache-2.0
// Preloaded, it makes libtorch, and zea's own choices, those of a Xeon with AMX, on a processor
// that has AVX512_BF16 but no AMX. Where they ask by cpuid and xgetbv, which the symbols of their
// files tell, the instructions are made to trap, as those on tiles do by themselves.
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "processors/sites.hpp"
#include "processors/tiles.hpp"

namespace zea::testing {
namespace {

/// Beginnings of the names of functions that ask: oneDNN's, MKL's, cpuinfo's, the compiler's.
constexpr std::string_view kAsking[] = {"_ZN5Xbyak4util3Cpu",
                                        "_ZN4dnnl4impl3cpu3x643amx",
                                        "_ZN4dnnl4impl3cpu8platform11get_num_",
                                        "__intel_mkl_features_init_body",
                                        "__detect_real_cpu",
                                        "update_cache_sizes",
                                        "mkl_serv_cpu",
                                        "mkl_serv_enable_instructions",
                                        "mkl_serv_intel_cpu",
                                        "cpuinfo_x86_",
                                        "__cpu_indicator_init",
                                        "get_available_features"};

bool asks(const char* function) {
  return std::any_of(std::begin(kAsking), std::end(kAsking), [&](std::string_view beginning) {
    return std::strncmp(function, beginning.data(), beginning.size()) == 0;
  });
}

constexpr std::string_view kCpuid = "\x0f\xa2", kXgetbv = "\x0f\x01\xd0", kTrap = "\x0f\x0b";

struct Trap {
  uintptr_t address;
  bool is_cpuid;
};
std::vector<Trap> traps;

struct Leaf {
  uint32_t eax, ebx, ecx, edx;
};

/// What cpuid says on a Xeon of the fourth generation; where it says nothing else, what it says
/// here.
Leaf leaf_of_xeon(uint32_t leaf, uint32_t subleaf) {
  static constexpr Leaf kCaches[] = {{0x04000121, 0x02c0003f, 63, 0},       // 48 KiB
                                     {0x04000122, 0x01c0003f, 63, 0},       // 32 KiB, of code
                                     {0x04000143, 0x03c0003f, 2047, 0},     // 2 MiB
                                     {0x0400c163, 0x0380003f, 114687, 4}};  // 105 MiB
  constexpr uint32_t kTileFeatures = 1 << 22 | 1 << 24 | 1 << 25, kHalves = 1 << 23;
  constexpr uint32_t kVnni = 1 << 4;
  Leaf answer{};
  asm volatile("cpuid"
               : "=a"(answer.eax), "=b"(answer.ebx), "=c"(answer.ecx), "=d"(answer.edx)
               : "0"(leaf), "2"(subleaf));
  switch (leaf) {
    case 0:
      return {0x20, 0x756e6547, 0x6c65746e, 0x49656e69};  // GenuineIntel
    case 1:
      answer.eax = 0x806f8;
      return answer;
    case 4:
      return subleaf < std::size(kCaches) ? kCaches[subleaf] : Leaf{};
    case 7:
      if (subleaf == 0) answer.edx |= kTileFeatures | kHalves;
      if (subleaf == 1) answer.eax |= kVnni;
      return answer;
    case 0x1d:  // tiles: 8 of 16 rows of 64 bytes
      return subleaf == 0 ? Leaf{1, 0, 0, 0} : Leaf{1024 << 16 | 8192, 8 << 16 | 64, 16, 0};
    case 0x1e:
      return subleaf == 0 ? Leaf{0, 64 << 8 | 16, 0, 0} : Leaf{};
    default:
      return answer;
  }
}

/// The state that the system keeps: also that of tiles.
uint64_t kept_state(uint32_t number) {
  uint32_t low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(number));
  return uint64_t{high} << 32 | low | 3U << 17;
}

bool answer_trap(Registers& registers) {
  const auto at = static_cast<uintptr_t>(registers[REG_RIP]);
  const auto trap = std::find_if(traps.begin(), traps.end(),
                                 [&](const Trap& each) { return each.address == at; });
  if (trap == traps.end()) return false;
  const auto number = static_cast<uint32_t>(registers[REG_RCX]);
  if (trap->is_cpuid) {
    const Leaf leaf = leaf_of_xeon(static_cast<uint32_t>(registers[REG_RAX]), number);
    registers[REG_RAX] = leaf.eax;
    registers[REG_RBX] = leaf.ebx;
    registers[REG_RCX] = leaf.ecx;
    registers[REG_RDX] = leaf.edx;
    registers[REG_RIP] += kCpuid.size();
  } else {
    const uint64_t state = kept_state(number);
    registers[REG_RAX] = static_cast<uint32_t>(state);
    registers[REG_RDX] = static_cast<greg_t>(state >> 32);
    registers[REG_RIP] += kXgetbv.size();
  }
  return true;
}

bool run_and_detour(Registers& registers) {
  static std::atomic_flag is_taken;
  while (is_taken.test_and_set()) {
  }
  auto* const begin = reinterpret_cast<uint8_t*>(registers[REG_RIP]);
  const bool has_run = is_detour(begin) || run_tile_instructions(registers);
  if (has_run && !is_detour(begin))
    leave_detour(begin, reinterpret_cast<const uint8_t*>(registers[REG_RIP]));
  is_taken.clear();
  return has_run;
}

/// Ends the program by the instruction itself where a Xeon would not know it, or nobody here.
void on_unknown_instruction(int, siginfo_t*, void* context) {
  Registers& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  if (answer_trap(registers) || run_and_detour(registers) || replace_half_conversion(registers))
    return;
  const auto* code = reinterpret_cast<const uint8_t*>(registers[REG_RIP]);
  std::fprintf(stderr, "tests/processors/xeon.cpp: no instruction that is known here:");
  for (int i = 0; i < 15; ++i) std::fprintf(stderr, " %02x", code[i]);
  std::fprintf(stderr, "\n");
  signal(SIGILL, SIG_DFL);
}

[[noreturn]] void fail(const char* what, const char* path) {
  std::fprintf(stderr, "tests/processors/xeon.cpp: cannot %s %s\n", what, path);
  std::abort();
}

void make_trap(const char* path, char* at, bool is_cpuid) {
  const auto page = reinterpret_cast<uintptr_t>(at) & ~uintptr_t{4095};
  const size_t bytes = reinterpret_cast<uintptr_t>(at + kTrap.size()) - page;
  if (mprotect(reinterpret_cast<void*>(page), bytes, PROT_READ | PROT_WRITE | PROT_EXEC) != 0)
    fail("change the code of", path);
  traps.push_back({reinterpret_cast<uintptr_t>(at), is_cpuid});
  std::copy(kTrap.begin(), kTrap.end(), at);
}

void make_traps(const char* path, char* function, size_t bytes) {
  const std::string_view code(function, bytes);
  for (size_t i = 0; i < bytes; ++i)
    if (code.substr(i).starts_with(kCpuid) || code.substr(i).starts_with(kXgetbv))
      make_trap(path, function + i, code.substr(i).starts_with(kCpuid));
}

/// A file as bytes.
class Mapped {
 public:
  explicit Mapped(const char* path) {
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    struct stat status = {};
    if (file < 0 || fstat(file, &status) != 0) fail("open", path);
    bytes_ = static_cast<size_t>(status.st_size);
    data_ = static_cast<char*>(mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, file, 0));
    if (data_ == MAP_FAILED) fail("map", path);
    close(file);
  }
  ~Mapped() { munmap(data_, bytes_); }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

  template <class T>
  const T* at(size_t offset) const {
    return reinterpret_cast<const T*>(data_ + offset);
  }

 private:
  size_t bytes_ = 0;
  char* data_ = nullptr;
};

/// What a program has loaded.
struct Loaded {
  std::string path;
  char* base;
};

/// Functions that clones of functions are chosen by ask as early as a program is linked.
void ask_again(char* model, char* init) {
  if (model == nullptr || init == nullptr) return;
  std::fill_n(model, sizeof(uint32_t), 0);
  reinterpret_cast<int (*)()>(init)();
}

void make_traps(const Loaded& loaded) {
  const Mapped file(loaded.path.c_str());
  const auto& header = *file.at<ElfW(Ehdr)>(0);
  const auto* sections = file.at<ElfW(Shdr)>(header.e_shoff);
  char *model = nullptr, *init = nullptr;
  for (const auto* table = sections; table < sections + header.e_shnum; ++table) {
    if (table->sh_type != SHT_SYMTAB) continue;
    const char* names = file.at<char>(sections[table->sh_link].sh_offset);
    const auto* symbols = file.at<ElfW(Sym)>(table->sh_offset);
    for (const auto* symbol = symbols; symbol < symbols + table->sh_size / sizeof *symbol;
         ++symbol) {
      const char* name = names + symbol->st_name;
      char* const place = loaded.base + symbol->st_value;
      if (std::strcmp(name, "__cpu_model") == 0) model = place;
      if (std::strcmp(name, "__cpu_indicator_init") == 0) init = place;
      if (ELF64_ST_TYPE(symbol->st_info) == STT_FUNC && asks(name))
        make_traps(loaded.path.c_str(), place, symbol->st_size);
    }
  }
  ask_again(model, init);
}

/// The program, libc10 and libtorch_cpu.
std::vector<Loaded> asking_files() {
  std::vector<Loaded> files;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* found) {
        const std::string_view name = info->dlpi_name;
        if (name.empty() || name.ends_with("/libc10.so") || name.ends_with("/libtorch_cpu.so"))
          static_cast<std::vector<Loaded>*>(found)->push_back(
              {name.empty() ? "/proc/self/exe" : info->dlpi_name,
               reinterpret_cast<char*>(info->dlpi_addr)});
        return 0;
      },
      &files);
  return files;
}

/// Once libtorch is there.
__attribute__((constructor)) void become_xeon() {
  static std::atomic<bool> is_one = false;
  if (is_one) return;
  const std::vector<Loaded> files = asking_files();
  if (files.size() < 3 || is_one.exchange(true)) return;
  struct sigaction action = {};
  action.sa_sigaction = on_unknown_instruction;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGILL, &action, nullptr);
  traps.reserve(1024);
  for (const Loaded& file : files) make_traps(file);
}

}  // namespace
}  // namespace zea::testing

// libc's names, for the program and the libraries that it loads.
extern "C" {

/// libtorch asks for settings first, also where Python loads it.
char* getenv(const char* name) noexcept {
  zea::testing::become_xeon();
  const std::string_view wanted = name;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry)
    if (std::string_view(*entry).starts_with(wanted) && (*entry)[wanted.size()] == '=')
      return *entry + wanted.size() + 1;
  return nullptr;
}

/// The system allows tiles.
long syscall(long number, ...) noexcept {
  constexpr long kAllowed = 0x1022, kAllow = 0x1023;
  va_list list;
  va_start(list, number);
  long given[6];
  for (long& argument : given) argument = va_arg(list, long);
  va_end(list);
  if (number == SYS_arch_prctl && given[0] == kAllow) return 0;
  if (number == SYS_arch_prctl && given[0] == kAllowed) {
    *reinterpret_cast<uint64_t*>(given[1]) = 3U << 17;
    return 0;
  }
  long result = number;
  register long r10 asm("r10") = given[3];
  register long r8 asm("r8") = given[4];
  register long r9 asm("r9") = given[5];
  asm volatile("syscall"
               : "+a"(result)
               : "D"(given[0]), "S"(given[1]), "d"(given[2]), "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
  if (result >= 0 || result < -4095) return result;
  errno = static_cast<int>(-result);
  return -1;
}

}  // extern "C"
