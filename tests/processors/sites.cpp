// SPDX-License-Identifier: Apache-2.0
#include "processors/sites.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "processors/tiles.hpp"

extern "C" void zea_enter_site();

namespace zea::testing {
namespace {

constexpr uint8_t kJumpOpcode = 0xe9;

/// What instructions on tiles are replaced by a jump to.
struct [[gnu::packed]] Detour {
  uint8_t spare_red_zone[5] = {0x48, 0x8d, 0x64, 0x24, 0x80};  ///< lea -128(%rsp), %rsp
  uint8_t call[6] = {0xff, 0x15, 0, 0, 0, 0};                  ///< call *entry(%rip)
  void (*entry)() = zea_enter_site;
  const uint8_t* at = nullptr;
  uint8_t code[256] = {};  ///< what stood there; then zeros, which are no instruction on tiles
};

constexpr uintptr_t kLine = 64, kPage = 4096, kJump = 5, kWord = 8;

/// Memory for code, from which and to which a jump reaches; null where there is none left.
uint8_t* allocate(const uint8_t* near, size_t bytes) {
  constexpr size_t kBytes = size_t{256} << 20;
  static auto* const arena = static_cast<uint8_t*>(
      mmap(const_cast<uint8_t*>(near) - kBytes, kBytes, PROT_READ | PROT_WRITE | PROT_EXEC,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  static size_t taken = 0;
  if (arena == MAP_FAILED || taken + bytes > kBytes) return nullptr;
  return arena + std::exchange(taken, taken + (bytes + 15) / 16 * 16);
}

/// By one write, as other threads may be about to run what is there.
void put_jump(uint8_t* at, ptrdiff_t distance) {
  const auto address = reinterpret_cast<uintptr_t>(at);
  const uintptr_t first = std::min(address, address / kLine * kLine + kLine - kWord);
  if (mprotect(reinterpret_cast<void*>(first / kPage * kPage), kPage,
               PROT_READ | PROT_WRITE | PROT_EXEC) != 0)
    return;
  uint8_t word[kWord];
  std::memcpy(word, reinterpret_cast<const void*>(first), kWord);
  const auto offset = static_cast<int32_t>(distance);
  word[address - first] = kJumpOpcode;
  std::memcpy(word + (address - first) + 1, &offset, sizeof offset);
  uint64_t whole = 0;
  std::memcpy(&whole, word, kWord);
  *reinterpret_cast<volatile uint64_t*>(first) = whole;
}

}  // namespace

bool is_detour(const uint8_t* code) {
  return *code == kJumpOpcode;
}

void leave_detour(uint8_t* begin, const uint8_t* end) {
  Detour detour{.at = begin};
  const auto bytes = static_cast<size_t>(end - begin);
  if (bytes >= sizeof detour.code || reinterpret_cast<uintptr_t>(begin) % kLine > kLine - kJump)
    return;
  std::copy<const uint8_t*>(begin, end, detour.code);
  const size_t needed = offsetof(Detour, code) + bytes + 1;
  uint8_t* const place = allocate(begin, needed);
  const ptrdiff_t distance = place - (begin + kJump);
  if (place == nullptr || distance != static_cast<int32_t>(distance)) return;
  std::memcpy(place, &detour, needed);
  put_jump(begin, distance);
}

}  // namespace zea::testing

/// Called with the registers that the assembly below has pushed, the place of the entry for rip.
extern "C" void zea_run_site(zea::testing::Registers& registers) {
  using zea::testing::Detour;
  const auto& detour =
      *reinterpret_cast<const Detour*>(registers[REG_RIP] - offsetof(Detour, entry));
  greg_t& back = registers[REG_CSGSFS];  // where the call has put its return address
  registers[REG_RSP] = reinterpret_cast<greg_t>(&back + 1) + 128;
  registers[REG_RIP] = reinterpret_cast<greg_t>(detour.code);
  zea::testing::run_tile_instructions(registers);
  back = reinterpret_cast<greg_t>(detour.at) + registers[REG_RIP] -
         reinterpret_cast<greg_t>(detour.code);
}

// Keeps what C++ may change: the flags, the general registers, in the order of gregset_t, and, by
// xsave, all of vectors and masks.
asm(R"(
  .text
zea_enter_site:
  pushfq
  pushq 8(%rsp)
  pushq %rsp
  pushq %rcx
  pushq %rax
  pushq %rdx
  pushq %rbx
  pushq %rbp
  pushq %rsi
  pushq %rdi
  pushq %r15
  pushq %r14
  pushq %r13
  pushq %r12
  pushq %r11
  pushq %r10
  pushq %r9
  pushq %r8
  movq %rsp, %rbx
  subq $4096, %rsp
  andq $-64, %rsp
  cld
  xorl %eax, %eax
  leaq 512(%rsp), %rdi
  movl $8, %ecx
  rep stosq
  movl $0xe6, %eax
  xorl %edx, %edx
  xsave64 (%rsp)
  movq %rbx, %rdi
  call zea_run_site@PLT
  movl $0xe6, %eax
  xorl %edx, %edx
  xrstor64 (%rsp)
  movq %rbx, %rsp
  popq %r8
  popq %r9
  popq %r10
  popq %r11
  popq %r12
  popq %r13
  popq %r14
  popq %r15
  popq %rdi
  popq %rsi
  popq %rbp
  popq %rbx
  popq %rdx
  popq %rax
  popq %rcx
  leaq 16(%rsp), %rsp
  popfq
  ret $128
)");
