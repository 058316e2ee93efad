// SPDX-License-Identifier: Apache-2.0
// FLAC through libFLAC, which checks a sum for every frame and one for the whole. Its first
// complaint ends the work: it would go on with what it can find. Nothing is taken on the word of
// the header; samples come frame by frame, so that a small file cannot ask for much memory.
#include <FLAC/stream_decoder.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include "core/error.hpp"
#include "data/audio.hpp"

namespace zea {
namespace {

class FlacReader {
 public:
  FlacReader(std::span<const uint8_t> bytes, int64_t max_seconds);
  ~FlacReader() { FLAC__stream_decoder_delete(decoder_); }
  FlacReader(const FlacReader&) = delete;
  FlacReader& operator=(const FlacReader&) = delete;

  Audio read();

 private:
  static FlacReader& of(void* client) { return *static_cast<FlacReader*>(client); }
  static FLAC__StreamDecoderReadStatus on_read(const FLAC__StreamDecoder*, FLAC__byte* target,
                                               size_t* bytes, void* client);
  static FLAC__StreamDecoderWriteStatus on_frame(const FLAC__StreamDecoder*,
                                                 const FLAC__Frame* frame,
                                                 const FLAC__int32* const channels[], void* client);
  static void on_metadata(const FLAC__StreamDecoder*, const FLAC__StreamMetadata* block,
                          void* client);
  static void on_error(const FLAC__StreamDecoder*, FLAC__StreamDecoderErrorStatus status,
                       void* client);

  void add(const FLAC__Frame& frame, const FLAC__int32* const channels[]);
  void check_step(bool succeeded) const;
  bool is_complete() const { return has_total() && count() == info_.total_samples; }
  bool has_total() const { return info_.total_samples > 0; }
  uint64_t count() const { return audio_.samples.size(); }

  std::span<const uint8_t> rest_;
  const int64_t max_seconds_;
  FLAC__StreamDecoder* const decoder_;
  FLAC__StreamMetadata_StreamInfo info_{};  ///< sample_rate 0: not seen yet
  Audio audio_;
  std::exception_ptr error_;  ///< of a callback; it must not pass through libFLAC
};

[[noreturn]] void refuse_flac(const std::string& fault) {
  throw DataError("FLAC: " + fault);
}

/// libFLAC takes memory for a table of seek points, up to 22 MB, before it reads it.
void check_metadata(std::span<const uint8_t> rest) {
  rest = rest.subspan(4);  // fLaC
  for (bool is_last = false; !is_last && rest.size() >= 4;) {
    is_last = (rest[0] & 0x80) != 0;
    const size_t bytes = size_t{rest[1]} << 16 | size_t{rest[2]} << 8 | rest[3];
    rest = rest.subspan(4);
    if (bytes > rest.size())
      refuse_flac("a block of metadata says that it has " + std::to_string(bytes) + " bytes, of " +
                  std::to_string(rest.size()) + " that are left in the file");
    rest = rest.subspan(bytes);
  }
}

FlacReader::FlacReader(std::span<const uint8_t> bytes, int64_t max_seconds)
    : rest_(bytes), max_seconds_(max_seconds), decoder_(FLAC__stream_decoder_new()) {
  if (!decoder_) throw std::bad_alloc();
  FLAC__stream_decoder_set_md5_checking(decoder_, true);
  const auto status = FLAC__stream_decoder_init_stream(
      decoder_, on_read, nullptr, nullptr, nullptr, nullptr, on_frame, on_metadata, on_error, this);
  if (status == FLAC__STREAM_DECODER_INIT_STATUS_OK) return;
  FLAC__stream_decoder_delete(decoder_);
  throw std::bad_alloc();  // the one reason that is left with these arguments
}

FLAC__StreamDecoderReadStatus FlacReader::on_read(const FLAC__StreamDecoder*, FLAC__byte* target,
                                                  size_t* bytes, void* client) {
  FlacReader& reader = of(client);
  *bytes = std::min(*bytes, reader.rest_.size());
  if (*bytes == 0) return FLAC__STREAM_DECODER_READ_STATUS_END_OF_STREAM;
  std::memcpy(target, reader.rest_.data(), *bytes);
  reader.rest_ = reader.rest_.subspan(*bytes);
  return FLAC__STREAM_DECODER_READ_STATUS_CONTINUE;
}

FLAC__StreamDecoderWriteStatus FlacReader::on_frame(const FLAC__StreamDecoder*,
                                                    const FLAC__Frame* frame,
                                                    const FLAC__int32* const channels[],
                                                    void* client) {
  FlacReader& reader = of(client);
  if (reader.error_) return FLAC__STREAM_DECODER_WRITE_STATUS_ABORT;
  try {
    reader.add(*frame, channels);
    return FLAC__STREAM_DECODER_WRITE_STATUS_CONTINUE;
  } catch (...) {
    reader.error_ = std::current_exception();
    return FLAC__STREAM_DECODER_WRITE_STATUS_ABORT;
  }
}

void FlacReader::on_metadata(const FLAC__StreamDecoder*, const FLAC__StreamMetadata* block,
                             void* client) {
  if (block->type == FLAC__METADATA_TYPE_STREAMINFO) of(client).info_ = block->data.stream_info;
}

void FlacReader::on_error(const FLAC__StreamDecoder*, FLAC__StreamDecoderErrorStatus status,
                          void* client) {
  FlacReader& reader = of(client);
  if (reader.error_) return;
  reader.error_ = std::make_exception_ptr(
      DataError(std::string("FLAC: ") + FLAC__StreamDecoderErrorStatusString[status] + " after " +
                std::to_string(reader.count()) + " samples"));
}

void FlacReader::add(const FLAC__Frame& frame, const FLAC__int32* const channels[]) {
  const FLAC__FrameHeader& header = frame.header;
  if (header.sample_rate != info_.sample_rate || header.channels != info_.channels ||
      header.bits_per_sample != info_.bits_per_sample)
    refuse_flac("rate, channels or bits change after " + std::to_string(count()) + " samples");
  check_clip("FLAC", info_.sample_rate, static_cast<int64_t>(count() + header.blocksize),
             max_seconds_);
  const double scale =
      1 / (static_cast<double>(uint64_t{1} << (header.bits_per_sample - 1)) * header.channels);
  for (uint32_t i = 0; i < header.blocksize; ++i) {
    double sum = 0;
    for (uint32_t c = 0; c < header.channels; ++c) sum += channels[c][i];
    audio_.samples.push_back(static_cast<float>(sum * scale));
  }
}

/// After a call of libFLAC: what a callback found stands above what the call says.
void FlacReader::check_step(bool succeeded) const {
  if (error_) std::rethrow_exception(error_);
  if (!succeeded) refuse_flac(FLAC__stream_decoder_get_resolved_state_string(decoder_));
}

Audio FlacReader::read() {
  check_step(FLAC__stream_decoder_process_until_end_of_metadata(decoder_));
  if (info_.sample_rate == 0) refuse_flac("no STREAMINFO");
  if (has_total())
    check_clip("FLAC", info_.sample_rate, static_cast<int64_t>(info_.total_samples), max_seconds_);
  audio_.rate = info_.sample_rate;
  while (!is_complete() &&
         FLAC__stream_decoder_get_state(decoder_) != FLAC__STREAM_DECODER_END_OF_STREAM)
    check_step(FLAC__stream_decoder_process_single(decoder_));
  if (has_total() && !is_complete())
    refuse_flac(std::to_string(count()) + " samples; its header says " +
                std::to_string(info_.total_samples));
  check_clip("FLAC", audio_.rate, static_cast<int64_t>(count()), max_seconds_);
  if (!FLAC__stream_decoder_finish(decoder_))
    refuse_flac("the samples do not have the file's MD5 sum");
  return std::move(audio_);
}

}  // namespace

Audio decode_flac(std::span<const uint8_t> bytes, int64_t max_seconds) {
  check_metadata(bytes);
  return FlacReader(bytes, max_seconds).read();
}

}  // namespace zea
