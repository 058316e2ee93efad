// SPDX-License-Identifier: Apache-2.0
// A box is cut against each piece, the contiguous runs of the common part are walked in the order
// of the piece's bytes, and each block that a run touches is read whole and checked. Neighbouring
// boxes share the blocks at their edges, so the last few are kept.
#include "io/pieces.hpp"

#include "core/dtype.hpp"
#include "core/extent.hpp"
#include "zea/copy.hpp"

#include <algorithm>
#include <set>

#include "core/error.hpp"
#include "core/threads.hpp"
#include "files/direct_write.hpp"
#include "io/shard_file.hpp"
#include "io/tensor_request.hpp"

namespace zea {
namespace {

constexpr size_t kOpenFiles = 16;
constexpr size_t kKeptBlocks = 4;

int64_t elements_of_block(const Piece& piece, int64_t number) {
  const int64_t in_block = block_elements(piece.dtype);
  return std::min(in_block, piece.extent.elements() - number * in_block);
}

}  // namespace

struct PieceReader::OpenPieces {
  std::string name;
  H5File file;
  std::set<std::string> checked;  ///< datasets whose shape and type agree with the manifest
};

/// A block in memory that agrees with its hash.
struct PieceReader::Block {
  const Piece* piece = nullptr;
  int64_t number = -1;
  std::vector<char> bytes;
};

PieceReader::PieceReader(std::string where, const Manifest& manifest, OpenFile open_file)
    : where_(std::move(where)), manifest_(manifest), open_file_(std::move(open_file)) {
  for (const Piece& piece : manifest.pieces) pieces_[{piece.tensor, piece.state}].push_back(&piece);
}

PieceReader::~PieceReader() = default;

std::vector<std::string> PieceReader::states(const std::string& name) const {
  std::vector<std::string> found;
  for (auto entry = pieces_.lower_bound({name, ""});
       entry != pieces_.end() && entry->first.first == name; ++entry)
    if (entry->first.second != kStateParameter) found.push_back(entry->first.second);
  return found;
}

const std::vector<const Piece*>& PieceReader::pieces_of(const std::string& name,
                                                        const std::string& state) const {
  const auto found = pieces_.find({name, state});
  if (found == pieces_.end())
    throw WeightsError(where_ + ": tensor \"" + name + "\" has no " + state +
                       " in this checkpoint");
  return found->second;
}

TensorInfo PieceReader::info(const TensorInfo& tensor, const std::string& state) const {
  const Piece& piece = *pieces_of(tensor.name, state).front();
  return {tensor.name, in_blocks(tensor.shape, piece.elements_of_each), piece.dtype};
}

/// Files stay open as long as a reader of them is under way.
std::shared_ptr<PieceReader::OpenPieces> PieceReader::file_of(const Piece& piece) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = std::find_if(open_.begin(), open_.end(),
                                  [&](const auto& open) { return open->name == piece.file; });
  if (found != open_.end()) {
    open_.splice(open_.begin(), open_, found);
  } else {
    if (open_.size() >= kOpenFiles) open_.pop_back();
    open_.push_front(
        std::make_shared<OpenPieces>(OpenPieces{piece.file, open_file_(piece.file), {}}));
  }
  std::shared_ptr<OpenPieces> open = open_.front();
  if (!open->checked.contains(piece.dataset)) {
    check_shard_piece(open->file, piece);
    open->checked.insert(piece.dataset);
  }
  return open;
}

std::unique_ptr<PieceReader::Block> PieceReader::take_block(const Piece& piece, int64_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto found = std::find_if(blocks_.begin(), blocks_.end(), [&](const auto& block) {
    return block->piece == &piece && block->number == number;
  });
  if (found == blocks_.end()) {
    if (blocks_.size() < kKeptBlocks) return std::make_unique<Block>();
    --found;  // the one that has not been used for longest
  }
  std::unique_ptr<Block> block = std::move(*found);
  blocks_.erase(found);
  return block;
}

void PieceReader::give_block(std::unique_ptr<Block> block) {
  const std::lock_guard<std::mutex> lock(mutex_);
  blocks_.push_front(std::move(block));
  if (blocks_.size() > kKeptBlocks) blocks_.pop_back();
}

void PieceReader::read_block(const Piece& piece, int64_t number, char* target) {
  const std::shared_ptr<OpenPieces> open = file_of(piece);
  const int64_t count = elements_of_block(piece, number);
  const int64_t bytes = count * static_cast<int64_t>(element_bytes(piece.dtype));
  open->file.read_range(piece.dataset, number * block_elements(piece.dtype), count, target);
  if (hash_bytes(target, bytes) != piece.block_hashes[static_cast<size_t>(number)])
    throw WeightsError(open->file.path() + ": tensor \"" + piece.tensor + "\" (" + piece.state +
                       "), block " + std::to_string(number) + " of dataset \"" + piece.dataset +
                       "\": its hash is not the one in the manifest: the file is damaged");
}

std::unique_ptr<PieceReader::Block> PieceReader::checked_block(const Piece& piece, int64_t number) {
  std::unique_ptr<Block> block = take_block(piece, number);
  if (block->piece == &piece && block->number == number) return block;
  block->piece = nullptr;
  block->bytes.resize(static_cast<size_t>(elements_of_block(piece, number)) *
                      element_bytes(piece.dtype));
  read_block(piece, number, block->bytes.data());
  block->piece = &piece;
  block->number = number;
  return block;
}

void PieceReader::copy_part(const Piece& piece, const Extent& part, const Extent& extent,
                            DType dtype, char* target) {
  const int64_t in_block = block_elements(piece.dtype);
  const auto from_bytes = static_cast<int64_t>(element_bytes(piece.dtype));
  const auto to_bytes = static_cast<int64_t>(element_bytes(dtype));
  std::unique_ptr<Block> block;
  for (CopyRun run : copy_runs(part, piece.extent, extent)) {
    while (run.elements > 0) {
      const int64_t number = run.source_element / in_block;
      const int64_t inside = run.source_element - number * in_block;
      const int64_t count = std::min(run.elements, in_block - inside);
      char* place = target + run.target_element * to_bytes;
      if (dtype == piece.dtype && count == elements_of_block(piece, number)) {
        read_block(piece, number, place);
      } else {
        if (!block || block->number != number) {
          if (block) give_block(std::move(block));
          block = checked_block(piece, number);
        }
        convert_elements(piece.dtype, block->bytes.data() + inside * from_bytes, dtype, place,
                         count);
      }
      run.source_element += count;
      run.target_element += count;
      run.elements -= count;
    }
  }
  if (block) give_block(std::move(block));
}

void PieceReader::read(const TensorInfo& tensor, const std::string& state, const Extent& extent,
                       DType dtype, void* target) {
  int64_t found = 0;
  for (const Piece* piece : pieces_of(tensor.name, state)) {
    const Extent part = intersect(piece->extent, extent);
    if (part.empty()) continue;
    found += part.elements();
    copy_part(*piece, part, extent, dtype, static_cast<char*>(target));
  }
  if (found != extent.elements())
    throw WeightsError(where_ + ": the pieces of tensor \"" + tensor.name + "\" (" + state +
                       ") hold " + std::to_string(found) + " of " +
                       std::to_string(extent.elements()) + " elements asked for");
  check_finite(tensor, extent, dtype, target, where_ + " (" + state + ")");
}

void PieceReader::check_all() {
  check_coverage(manifest_);
  std::vector<char> bytes(kHashBlockBytes);
  for (const Piece& piece : manifest_.pieces)
    for (int64_t number = 0; number < num_blocks(piece); ++number)
      read_block(piece, number, bytes.data());
}

namespace {

/// Larger parts gain nothing and only cost memory.
constexpr int64_t kMostPartBytes = 16 << 20;

struct Part {
  size_t piece;
  int64_t first, count;
};

std::vector<Part> cut_to_parts(const std::vector<Piece>& pieces, int64_t blocks) {
  std::vector<Part> parts;
  for (size_t p = 0; p < pieces.size(); ++p) {
    const int64_t most = blocks * block_elements(pieces[p].dtype);
    const int64_t elements = pieces[p].extent.elements();
    for (int64_t first = 0; first < elements; first += most)
      parts.push_back({p, first, std::min(most, elements - first)});
  }
  return parts;
}

}  // namespace

Piece make_whole_piece(const TensorInfo& tensor, const std::string& state, const std::string& file,
                       const std::string& dataset, int64_t elements_of_each) {
  Piece piece{tensor.name,
              state,
              whole(in_blocks(tensor.shape, elements_of_each)),
              tensor.dtype,
              file,
              dataset,
              {},
              elements_of_each};
  size_hashes(piece);
  return piece;
}

void read_part(const WeightsSource& source, const StateSource* state, const Piece& piece,
               int64_t first, int64_t count, char* target) {
  const TensorInfo& tensor = find_tensor(source.tensors(), piece.tensor, source.describe());
  const Shape shape = in_blocks(tensor.shape, piece.elements_of_each);
  for (const Extent& box : boxes_inside(piece.extent, first, first + count)) {
    if (piece.state == kStateParameter)
      source.read(piece.tensor, shape, box, piece.dtype, target);
    else
      state->read_state(piece.tensor, piece.state, shape, box, piece.dtype, target);
    target += box.elements() * static_cast<int64_t>(element_bytes(piece.dtype));
  }
}

void copy_pieces(const WeightsSource& source, const StateSource* state, std::vector<Piece>& pieces,
                 const CopyLimits& limits, const TakePart& take) {
  ZEA_ASSERT(limits.threads >= 1);
  const int64_t most_bytes = std::min(kMostPartBytes, limits.buffer_bytes / limits.threads);
  const int64_t blocks = std::max<int64_t>(1, most_bytes / kHashBlockBytes);
  const std::vector<Part> parts = cut_to_parts(pieces, blocks);
  std::vector<PageMemory> buffers;  // of the threads; what none touches takes no memory
  for (int t = 0; t < limits.threads; ++t) buffers.emplace_back(blocks * kHashBlockBytes);
  parallel_for(limits.threads, parts.size(), [&](int thread, size_t p) {
    const Part& part = parts[p];
    char* buffer = buffers[static_cast<size_t>(thread)].data();
    read_part(source, state, pieces[part.piece], part.first, part.count, buffer);
    take(pieces[part.piece], part.first, part.count, buffer);
  });
}

int64_t total_bytes(const std::vector<TensorInfo>& tensors) {
  int64_t bytes = 0;
  for (const TensorInfo& tensor : tensors)
    bytes += num_elements(tensor.shape) * static_cast<int64_t>(element_bytes(tensor.dtype));
  return bytes;
}

void stream_tensor(const WeightsSource& source, const TensorInfo& tensor, DType dtype,
                   std::vector<char>& buffer, const TakeElements& take) {
  const auto size = static_cast<int64_t>(element_bytes(dtype));
  const int64_t elements = num_elements(tensor.shape);
  const int64_t most = std::max<int64_t>(1, static_cast<int64_t>(buffer.size()) / size);
  buffer.resize(std::max(buffer.size(), static_cast<size_t>(size)));
  for (int64_t first = 0; first < elements; first += most) {
    const int64_t end = std::min(elements, first + most);
    char* position = buffer.data();
    for (const Extent& box : boxes_of_range(tensor.shape, first, end)) {
      source.read(tensor.name, tensor.shape, box, dtype, position);
      position += box.elements() * size;
    }
    take(first, end - first, buffer.data());
  }
}

}  // namespace zea
