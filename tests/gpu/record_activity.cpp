// SPDX-License-Identifier: Apache-2.0
// Records the activity of GPUs while any program runs: CUDA loads this library if
// CUDA_INJECTION64_PATH names it, and CUPTI reports every kernel, copy and fill to it, also those
// of graphs. Each is a line of the file $ZEA_ACTIVITY_FILE.<process>: begin and end in ns, stream,
// name, separated by tabs. Errors go to stderr, and the program continues.
#include <cupti.h>
#include <cxxabi.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>

namespace {

constexpr size_t kBufferBytes = size_t{8} << 20;

std::mutex recording_mutex;      // CUPTI delivers from a thread of its own, and at the end
std::FILE* recording = nullptr;  // open from the first call of CUDA to the end of the program

void tell(const char* what, const char* why) {
  std::fprintf(stderr, "record_activity: %s: %s\n", what, why);
}

bool succeeded(const char* call, CUptiResult result) {
  if (result == CUPTI_SUCCESS) return true;
  const char* text = nullptr;
  cuptiGetResultString(result, &text);
  tell(call, text ? text : "a result without a name");
  return false;
}

std::string demangled(const char* name) {
  if (name == nullptr) return "a kernel without a name";
  if (std::strncmp(name, "_Z", 2) != 0) return name;
  char* readable = abi::__cxa_demangle(name, nullptr, nullptr, nullptr);
  const std::string found = readable ? readable : name;
  std::free(readable);
  return found;
}

const char* name_of_copy(uint8_t kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
      return "copy from host to device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
      return "copy from device to host";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD:
      return "copy on the device";
    default:
      return "copy of another kind";
  }
}

template <class Record>
void write_line(const Record& record, const std::string& name) {
  const auto begin = static_cast<unsigned long long>(record.start);
  const auto end = static_cast<unsigned long long>(record.end);
  std::fprintf(recording, "%llu\t%llu\t%u\t%s\n", begin, end, record.streamId, name.c_str());
}

/// Newer versions of a record add fields at its end, which are not needed here: these records, of
/// CUDA 12.0, are in the headers of all later versions, and are the beginning of their libraries'
/// records.
void write_record(const CUpti_Activity* record) {
  switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
      const auto& kernel = *reinterpret_cast<const CUpti_ActivityKernel9*>(record);
      return write_line(kernel, demangled(kernel.name));
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
      const auto& copy = *reinterpret_cast<const CUpti_ActivityMemcpy5*>(record);
      return write_line(copy, name_of_copy(copy.copyKind));
    }
    case CUPTI_ACTIVITY_KIND_MEMSET:
      return write_line(*reinterpret_cast<const CUpti_ActivityMemset4*>(record), "fill");
    default:
      return;
  }
}

void CUPTIAPI give_buffer(uint8_t** buffer, size_t* bytes, size_t* most_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(ACTIVITY_RECORD_ALIGNMENT, kBufferBytes));
  *bytes = *buffer ? kBufferBytes : 0;
  *most_records = 0;  // as many as it has room for
}

void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t* buffer, size_t,
                          size_t filled_bytes) {
  const std::lock_guard lock(recording_mutex);
  CUpti_Activity* record = nullptr;
  CUptiResult result = CUPTI_ERROR_MAX_LIMIT_REACHED;  // the result after the last record
  while (recording && filled_bytes > 0 &&
         (result = cuptiActivityGetNextRecord(buffer, filled_bytes, &record)) == CUPTI_SUCCESS)
    write_record(record);
  if (result != CUPTI_ERROR_MAX_LIMIT_REACHED) succeeded("cuptiActivityGetNextRecord", result);
  size_t dropped = 0;
  if (succeeded("cuptiActivityGetNumDroppedRecords",
                cuptiActivityGetNumDroppedRecords(context, stream, &dropped)) &&
      dropped > 0)
    tell("records that CUPTI had no room for", std::to_string(dropped).c_str());
  std::free(buffer);
}

void end_recording() {
  succeeded("cuptiActivityFlushAll", cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED));
  const std::lock_guard lock(recording_mutex);
  const bool was_written = std::ferror(recording) == 0;
  if (std::fclose(recording) != 0 || !was_written) tell("the recording", "could not be written");
  recording = nullptr;
}

bool start_recording() {
  const char* asked = std::getenv("ZEA_ACTIVITY_FILE");
  if (asked == nullptr) {
    tell("ZEA_ACTIVITY_FILE", "names no file");
    return false;
  }
  const std::string path = std::string(asked) + "." + std::to_string(::getpid());
  recording = std::fopen(path.c_str(), "w");
  if (recording == nullptr) {
    tell(path.c_str(), std::strerror(errno));
    return false;
  }
  if (!succeeded("cuptiActivityRegisterCallbacks",
                 cuptiActivityRegisterCallbacks(give_buffer, take_buffer)))
    return false;
  for (const auto& [kind, call] :
       {std::pair{CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, "cuptiActivityEnable of kernels"},
        std::pair{CUPTI_ACTIVITY_KIND_MEMCPY, "cuptiActivityEnable of copies"},
        std::pair{CUPTI_ACTIVITY_KIND_MEMSET, "cuptiActivityEnable of fills"}})
    succeeded(call, cuptiActivityEnable(kind));
  return true;
}

}  // namespace

/// The function that CUDA calls, by its name, when it starts; 1: go on.
extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
  if (start_recording() && std::atexit(end_recording) != 0)
    tell("std::atexit", "the end will not be recorded");
  return 1;
}
