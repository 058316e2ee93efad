// SPDX-License-Identifier: Apache-2.0
// A device that is not the host, made of the host: memory that the host may not touch, and streams
// that are threads. It replaces a GPU below the C functions of CUDA's runtime and NCCL
// (cuda_runtime.cpp, nccl.cpp) and below libtorch (torch_device.cpp). Errors that a GPU would not
// report, or could not survive, are faults here, by name: bytes that two streams use without an
// order between them, memory that is used after it was freed, a pointer of the host given to the
// device; and the host that touches the device's memory dies with a message.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <queue>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "device/accesses.hpp"
#include "device/launch_order.hpp"
#include "device/virtual_time.hpp"

namespace zea::testing {

class Capture;  // capture.hpp

/// Where a stream was when an event was recorded.
struct Mark {
  Clock seen;
  int stream = kHost;                          ///< in which it was recorded
  std::shared_ptr<Capture> capture = nullptr;  ///< which it is a part of, and there its number
  size_t in_capture = 0;
  std::mutex mutex;
  std::condition_variable changed;
  bool is_reached = false;
  std::chrono::steady_clock::time_point reached_at = {};  ///< by the stream's thread
  double time = 0;                                        ///< virtual
  TimedWork last = {};                                    ///< that of its stream until then

  void reach(double at_time = 0, const TimedWork& last_work = {});
  /// Returns the virtual time at which it was reached.
  double wait();
};

/// The order in which things were put into streams other than the computing one, for a device that
/// runs them one after the other: so do GPUs of before CUDA 12.3 with NCCL's communicators.
class Turns {
 public:
  int64_t take() { return taken_++; }
  void await(int64_t turn);
  void pass();

 private:
  std::atomic<int64_t> taken_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t next_ = 0;
};

/// Seed of the delays of all ranks of a job: ZEA_DEVICE_SEED, or else another one for each job.
uint32_t delay_seed();

/// A stream runs its work in order, on a thread of its own, each item after a random delay.
class Stream {
 public:
  /// With `turns` also in theirs, which outlive it.
  explicit Stream(int number, Turns* turns = nullptr);
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream();

  int number() const { return number_; }
  /// The clock of the next work.
  Clock& clock() { return clock_; }
  void push(std::function<void()> work) { put({std::move(work), /*uses_memory=*/true}); }
  /// Adds work that uses none of the device's memory.
  void push_aside(std::function<void()> work) { put({std::move(work), /*uses_memory=*/false}); }
  /// The next work waits until the mark is reached; the caller may be gone by then.
  std::shared_ptr<Mark> hold() { return hold(/*uses_memory=*/true); }
  std::shared_ptr<Mark> hold_aside() { return hold(/*uses_memory=*/false); }
  /// Returns when nothing is left to run: the host waits for the device.
  void drain();
  /// Returns when nothing is left that uses memory: an operation, which the host runs, may follow.
  /// The device may be behind it.
  void settle();

  /// The stream's virtual time: for its thread, or while nothing is in it.
  double& time() { return time_; }
  /// Its last work that took virtual time, for its thread.
  TimedWork& last() { return last_; }

  int priority = 0;  ///< less goes first
  /// The capture that keeps this stream's work, if any, and the stream's number in it.
  std::shared_ptr<Capture> capture = nullptr;
  size_t in_capture = 0;
  bool is_of_graph = false;

 private:
  struct Work {
    std::function<void()> run;
    bool uses_memory;
  };

  void put(Work work);
  std::shared_ptr<Mark> hold(bool uses_memory);
  void run();

  int number_;
  Turns* turns_;
  Clock clock_;
  double time_ = 0;
  TimedWork last_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::queue<Work> work_;
  int64_t using_memory_ = 0;  ///< of these, and of what runs
  bool is_busy_ = false, is_ending_ = false;
  std::minstd_rand delays_;
  std::thread thread_;
};

/// Bytes of the device: allocated ones, all that were reserved for them, and those that it has.
struct MemoryCount {
  int64_t allocated = 0, peak_allocated = 0, reserved = 0, all = 0;
};

/// Versions of NCCL and of CUDA's runtime and driver, as these number them.
struct Versions {
  int nccl = 22800, cuda = 13000;
};

/// Number of launches, by name.
using Launches = std::map<std::string, int64_t>;

/// The one device of this process.
class Device {
 public:
  /// With the stream that computes, number 0.
  Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device();

  /// Memory that holds NaN; the pointer is the device's. `pool`: of graphs, whose memory is given
  /// only once and stays theirs when it is freed; 0: of none.
  void* allocate(size_t bytes, int pool = 0);
  bool is_of_pool(const void* data);
  /// Sets the memory of a pool to NaN again.
  void forget_values(int pool);
  /// No graph uses it any more.
  void release(int pool);
  /// As CUDA's runtime frees: after all that is under way.
  void free(void* data);
  /// Frees as libtorch's allocator does: the next work of `owner`, the stream that the memory was
  /// allocated in, may get the memory, after the work of `users`.
  void free_in_order(void* data, Stream& owner, const std::vector<Stream*>& users = {});
  /// The size of an allocation.
  int64_t bytes_of(const void* data);
  MemoryCount memory() const;
  /// The peak counts from here.
  void reset_peak();
  /// Pinned memory of the host.
  void* allocate_pinned(size_t bytes);
  void free_pinned(void* data);
  bool is_pinned(const void* data) const;
  /// A copy from or to pinned memory runs asynchronously in `stream`: until the host has seen its
  /// end it dies when it writes the one, or touches the other.
  void hold(const void* pinned, Stream& stream, bool is_written);
  int64_t times_held() const { return held_; }
  /// Returns the address at which a thread of the device finds `data`; null for memory of the host.
  char* open(const void* data) const;
  /// Applies open() to the words of a launch's arguments that point into the device's memory.
  void open_all(void* arguments, size_t bytes) const;
  /// The inverse of open(); other pointers stay as they are.
  const char* closed(const char* data) const;

  Stream& compute() { return *compute_; }
  std::unique_ptr<Stream> make_stream();
  /// Forgets a stream that make_stream() made.
  void forget(Stream* stream);
  /// Whether streams made from now on take turns.
  void take_turns(bool do_so) { takes_turns_ = do_so; }
  /// `work` puts something into `stream`, now; or whenever a graph is launched, into a stream of
  /// that, where `stream` is captured.
  void submit(Stream& stream, std::function<void(Stream&)> work);
  /// Before something of `stream` that uses the bytes is put into it.
  void uses(Stream& stream, const void* data, size_t bytes, bool writes, const std::string& what);
  /// Begins new work in `stream`: it follows everything that the host has seen. Returns its clock.
  const Clock& begin(Stream& stream);
  /// Orders the work that `stream` has before the later work of the mark's waiters.
  std::shared_ptr<Mark> record(Stream& stream);
  void wait(Stream& stream, const std::shared_ptr<Mark>& mark);
  /// The host has seen this.
  void host_sees(const Clock& clock);
  /// It has, having waited for it.
  void host_awaits(const Clock& clock);
  int64_t times_awaited() const { return awaited_; }

  /// Starts virtual time at 0 on all streams, which must be drained; null: time stands still.
  void start_time(std::optional<CostTable> costs);
  const std::optional<CostTable>& costs() const { return costs_; }
  /// Adds work to the timeline, on the stream's thread, and moves the stream's time to its end.
  void spend(Stream& stream, TimedWork work);
  /// Returns the work since the start of time.
  std::vector<TimedWork> take_timeline();
  LaunchOrder& launch_order() { return launch_order_; }

  /// As the device tells them, and a test may change them.
  Versions& versions() { return versions_; }

  void count_launch(const std::string& what);
  /// Returns the launches since the last call.
  Launches take_launches();

  /// Says `fault` and keeps it.
  void fail(const std::string& fault);
  /// Returns the faults found so far and forgets them.
  std::vector<std::string> take_faults();

 private:
  struct Allocation {
    size_t bytes, place;
    bool is_live = true;
    int pool = 0;
    Accesses accesses{};
  };
  using Allocations = std::map<size_t, Allocation>;  ///< by offset

  /// Returns the allocation that contains `data`, or the end.
  Allocations::iterator find(const void* data);
  void release(Allocations::iterator allocation);

  mutable std::recursive_mutex mutex_;
  char* guarded_ = nullptr;  ///< as the host sees the memory: nothing may be touched
  char* open_ = nullptr;     ///< the same memory
  size_t used_ = 0;
  Allocations allocations_;
  int64_t allocated_ = 0, peak_allocated_ = 0;
  struct Pinned {
    size_t bytes;
    int stream = kHost;
    int64_t until = 0;  ///< of that stream: when the host may have it again
  };
  std::map<char*, Pinned> pinned_;
  std::map<size_t, std::queue<size_t>> free_places_;  ///< by size
  Clock host_;
  int streams_ = 0;
  bool takes_turns_ = false;
  Turns turns_;
  LaunchOrder launch_order_;
  std::set<Stream*> all_streams_;
  std::optional<CostTable> costs_;
  std::mutex time_mutex_;
  std::vector<TimedWork> timeline_;
  int64_t held_ = 0, awaited_ = 0;
  Launches launches_;
  Versions versions_;
  std::vector<std::string> faults_;
  std::unique_ptr<Stream> compute_;
};

Device& device();

}  // namespace zea::testing
