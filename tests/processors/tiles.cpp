// SPDX-License-Identifier: Apache-2.0
#include "processors/tiles.hpp"

#include <immintrin.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace zea::testing {
namespace {

constexpr int kTiles = 8, kRows = 16, kRowBytes = 64;

/// As ldtilecfg reads it from memory.
struct TileShapes {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
static_assert(sizeof(TileShapes) == 64);

struct Tile {
  alignas(kRowBytes) uint8_t bytes[kRows][kRowBytes];
};

thread_local TileShapes shapes;
thread_local Tile tiles[kTiles];

/// What follows the opcode.
struct Operands {
  int reg, rm;  ///< numbers of registers, but for what prefixes add
  uint8_t* memory = nullptr;
  int64_t stride = 0;             ///< of a tile in memory: its index register, scaled
  const uint8_t* next = nullptr;  ///< the instruction behind
};

/// A general register by its number in instructions.
int64_t register_at(const Registers& registers, int number) {
  static constexpr int kPlaces[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                    REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                    REG_R12, REG_R13, REG_R14, REG_R15};
  return registers[kPlaces[number]];
}

/// Reads the ModRM byte and what it says follows; `prefix`: the byte whose upper bits, inverted,
/// extend the numbers of registers. The displacement of a tile is bytes; that of AVX512 is not.
Operands read_operands(const Registers& registers, uint8_t prefix, const uint8_t* next) {
  const int mod = *next >> 6, rm = *next & 7;
  Operands operands{.reg = *next++ >> 3 & 7, .rm = rm};
  if (mod != 3) {
    const bool has_index = rm == 4;
    const uint8_t sib = has_index ? *next++ : static_cast<uint8_t>(4 << 3 | rm);
    const int index = (sib >> 3 & 7) | (prefix & 0x40 ? 0 : 8);
    const bool has_base = mod != 0 || (sib & 7) != 5;
    int32_t displacement = 0;
    if (mod == 1) displacement = static_cast<int8_t>(*next++);
    if (mod == 2 || !has_base) {
      std::memcpy(&displacement, next, sizeof displacement);
      next += sizeof displacement;
    }
    int64_t address = displacement;
    if (has_base) address += register_at(registers, (sib & 7) | (prefix & 0x20 ? 0 : 8));
    if (!has_base && !has_index) address += reinterpret_cast<int64_t>(next);
    if (has_index && index != 4) operands.stride = register_at(registers, index) << (sib >> 6);
    operands.memory = reinterpret_cast<uint8_t*>(address);
  }
  operands.next = next;
  return operands;
}

void configure(const uint8_t* from) {
  std::memcpy(&shapes, from, sizeof shapes);
  if (shapes.palette == 0) shapes = {};
  std::fill_n(tiles, kTiles, Tile{});
}

void load(int number, const Operands& from) {
  Tile tile{};
  for (int row = 0; row < shapes.rows[number]; ++row)
    std::memcpy(tile.bytes[row], from.memory + row * from.stride, shapes.row_bytes[number]);
  tiles[number] = tile;
}

void store(int number, const Operands& to) {
  for (int row = 0; row < shapes.rows[number]; ++row)
    std::memcpy(to.memory + row * to.stride, tiles[number].bytes[row], shapes.row_bytes[number]);
}

#define ZEA_AVX512 __attribute__((target("avx512f")))

/// The first, and the second, of pairs of bf16.
ZEA_AVX512 __m512 first_of(__m512i pairs) {
  using Words [[gnu::vector_size(64)]] = uint32_t;
  return reinterpret_cast<__m512>(reinterpret_cast<Words>(pairs) << 16);
}
ZEA_AVX512 __m512 second_of(__m512i pairs) {
  return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-0x10000)));
}

/// tdpbf16ps: products of first and of second elements are summed apart, and then are added.
ZEA_AVX512 void add_product(int result, int left, int right) {
  constexpr unsigned kNearestWithoutSubnormals = 0x9fc0;
  const unsigned kept = _mm_getcsr();
  _mm_setcsr(kNearestWithoutSubnormals);
  const int words = shapes.row_bytes[result] / 4;
  Tile sums{};
  for (int row = 0; row < shapes.rows[result]; ++row) {
    __m512 first = _mm512_setzero_ps(), second = _mm512_setzero_ps();
    for (int pair = 0; pair < shapes.row_bytes[left] / 4; ++pair) {
      int32_t one = 0;
      std::memcpy(&one, tiles[left].bytes[row] + 4 * pair, 4);
      const __m512i a = _mm512_set1_epi32(one), b = _mm512_load_si512(tiles[right].bytes[pair]);
      first = _mm512_fmadd_ps(first_of(a), first_of(b), first);
      second = _mm512_fmadd_ps(second_of(a), second_of(b), second);
    }
    const __m512 sum = _mm512_add_ps(_mm512_load_ps(tiles[result].bytes[row]), first + second);
    _mm512_store_ps(sums.bytes[row],
                    _mm512_maskz_mov_ps(static_cast<__mmask16>((1U << words) - 1), sum));
  }
  tiles[result] = sums;
  _mm_setcsr(kept);
}

/// Opcodes behind a VEX prefix, and the last two bits of that.
constexpr int opcode_of(uint8_t opcode, int prefix) {
  return opcode << 2 | prefix;
}

/// Whether it is an instruction on tiles, which then is done.
bool run_opcode(int opcode, int vvvv, const Operands& o) {
  switch (opcode) {
    case opcode_of(0x49, 0):
      if (o.memory != nullptr)
        configure(o.memory);  // ldtilecfg
      else
        shapes = {};  // tilerelease
      return true;
    case opcode_of(0x49, 1):
      std::memcpy(o.memory, &shapes, sizeof shapes);  // sttilecfg
      return true;
    case opcode_of(0x49, 3):
      tiles[o.reg] = {};  // tilezero
      return true;
    case opcode_of(0x4b, 1):  // tileloaddt1
    case opcode_of(0x4b, 3):  // tileloadd
      load(o.reg, o);
      return true;
    case opcode_of(0x4b, 2):  // tilestored
      store(o.reg, o);
      return true;
    case opcode_of(0x5c, 2):
      add_product(o.reg, o.rm, vvvv);
      return true;
    default:
      return false;
  }
}

}  // namespace

bool run_tile_instructions(Registers& registers) {
  constexpr uint8_t kVex = 0xc4, kMap = 2, kLengthOrWide = 0x84;
  for (bool has_run = false;; has_run = true) {
    const auto* code = reinterpret_cast<const uint8_t*>(registers[REG_RIP]);
    if (code[0] != kVex || (code[1] & 0x1f) != kMap || (code[2] & kLengthOrWide) != 0)
      return has_run;
    const Operands operands = read_operands(registers, code[1], code + 4);
    if (!run_opcode(opcode_of(code[3], code[2] & 3), ~code[2] >> 3 & 15, operands)) return has_run;
    registers[REG_RIP] = reinterpret_cast<greg_t>(operands.next);
  }
}

bool replace_half_conversion(Registers& registers) {
  constexpr uint8_t kEvex = 0x62, kMapBits = 7, kHalfMap = 6, kMap = 2, kConvert = 0x13;
  constexpr uint8_t kSpread = 0x10, kZeroes = 0x80, kMask = 7, kYmm = 0x20, kSpreadWords = 0x79;
  const auto* code = reinterpret_cast<const uint8_t*>(registers[REG_RIP]);
  if (code[0] != kEvex || (code[1] & kMapBits) != kHalfMap || code[4] != kConvert) return false;
  const bool spreads = (code[3] & kSpread) != 0;
  if (spreads && (code[3] & kMask) != 0 && (code[3] & kZeroes) == 0) return false;
  thread_local auto* const page = static_cast<uint8_t*>(
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  const uint8_t* const next = read_operands(registers, code[1], code + 5).next;
  uint8_t* to = std::copy(code, next, page);
  page[1] = static_cast<uint8_t>((code[1] & ~kMapBits) | kMap);
  if (spreads) {  // into the lower half of the result, which then is converted
    const int reg = code[5] >> 3 & 7;
    page[3] = (code[3] & 0x08) | kYmm;
    page[4] = kSpreadWords;
    const uint8_t itself = (code[1] & 0x90) | (code[1] >> 2 & 0x20) | (code[1] << 2 & 0x40) | kMap;
    for (const int byte : {int{kEvex}, int{itself}, int{code[2]}, code[3] & ~kSpread, int{kConvert},
                           0xc0 | reg << 3 | reg})
      *to++ = static_cast<uint8_t>(byte);
  }
  const uint8_t jump[] = {0xff, 0x25, 0, 0, 0, 0};  // to the address behind it
  to = std::copy_n(jump, sizeof jump, to);
  std::memcpy(to, &next, sizeof next);
  registers[REG_RIP] = reinterpret_cast<greg_t>(page);
  return true;
}

}  // namespace zea::testing
