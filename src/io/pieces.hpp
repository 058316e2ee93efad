// SPDX-License-Identifier: Apache-2.0
// Boxes of tensors out of the pieces that a manifest names, whatever files hold them. Threads may
// read at the same time: only opening a file is done by one of them.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "h5/h5.hpp"
#include "io/manifest.hpp"
#include "zea/checkpoint.hpp"
#include "zea/weights.hpp"

namespace zea {

class PieceReader {
 public:
  /// Opens the file of that name in the manifest, checked to be the one that is meant.
  using OpenFile = std::function<H5File(const std::string& file)>;

  /// `manifest` must outlive the reader; `where` is for messages.
  PieceReader(std::string where, const Manifest& manifest, OpenFile open_file);
  ~PieceReader();

  /// The states of tensor `name` that there are pieces of, but for the parameter itself.
  std::vector<std::string> states(const std::string& name) const;
  /// Shape and element type of a state of `tensor`.
  TensorInfo info(const TensorInfo& tensor, const std::string& state) const;
  /// Reads box `extent` of a state, which is `tensor` (info()), into packed `target`; every block
  /// that it touches is checked against its hash.
  void read(const TensorInfo& tensor, const std::string& state, const Extent& extent, DType dtype,
            void* target);
  /// Reads and checks every block of every piece, and that the pieces cover the tensors.
  void check_all();

 private:
  struct OpenPieces;
  struct Block;

  const std::vector<const Piece*>& pieces_of(const std::string& name,
                                             const std::string& state) const;
  std::shared_ptr<OpenPieces> file_of(const Piece& piece);
  std::unique_ptr<Block> take_block(const Piece& piece, int64_t number);
  void give_block(std::unique_ptr<Block> block);
  void read_block(const Piece& piece, int64_t number, char* target);
  std::unique_ptr<Block> checked_block(const Piece& piece, int64_t number);
  void copy_part(const Piece& piece, const Extent& part, const Extent& extent, DType dtype,
                 char* target);

  std::string where_;
  const Manifest& manifest_;
  OpenFile open_file_;
  std::map<std::pair<std::string, std::string>, std::vector<const Piece*>> pieces_;
  std::mutex mutex_;                             ///< of what follows
  std::list<std::shared_ptr<OpenPieces>> open_;  ///< the one used last comes first
  std::list<std::unique_ptr<Block>> blocks_;     ///< not in use, read last comes first
};

}  // namespace zea
