// SPDX-License-Identifier: Apache-2.0
#include "device/capture.hpp"

namespace zea::testing {
namespace {

thread_local bool captures = false;

}  // namespace

bool may_ask(const std::string& what) {
  if (captures) device().fail(what + " by the thread that captures");
  return !captures;
}

void this_thread_captures(bool does_so) {
  captures = does_so;
}

void Capture::join(Stream& stream) {
  stream.in_capture = streams_.size();
  streams_.push_back(&stream);
  seen_.emplace_back();
  times_.push_back(0);
}

void Capture::keep(const Stream& stream, std::function<void(Stream&)> work) {
  const size_t at = stream.in_capture;
  times_[at] = seen_[at].tick(static_cast<int>(at));
  steps_.push_back([at, work = std::move(work)](Launch& launch) { work(*launch.streams[at]); });
}

std::shared_ptr<Mark> Capture::record(const Stream& stream) {
  const size_t at = stream.in_capture, number = num_marks_++;
  const auto mark = std::make_shared<Mark>();
  mark->seen = seen_[at];
  mark->capture = stream.capture;
  mark->in_capture = number;
  steps_.push_back([at, number](Launch& launch) {
    launch.marks[number] = device().record(*launch.streams[at]);
  });
  return mark;
}

void Capture::wait(const Stream& stream, const Mark& mark) {
  const size_t at = stream.in_capture;
  seen_[at].merge(mark.seen);
  steps_.push_back([at, number = mark.in_capture](Launch& launch) {
    device().wait(*launch.streams[at], launch.marks[number]);
  });
}

std::vector<int> Capture::end() {
  has_ended_ = true;
  std::vector<int> forgotten;
  for (size_t i = 0; i < streams_.size(); ++i) {
    streams_[i]->capture.reset();
    if (times_[i] > 0 && !seen_[0].has_seen(static_cast<int>(i), times_[i]))
      forgotten.push_back(streams_[i]->number());
  }
  return forgotten;
}

Graph::Graph(std::shared_ptr<const Capture> capture) : capture_(std::move(capture)) {
  launch_.marks.resize(capture_->num_marks_);
  for (size_t i = 0; i < capture_->streams_.size(); ++i) {
    launch_.streams.push_back(device().make_stream());
    launch_.streams.back()->is_of_graph = true;
  }
}

void Graph::launch(Stream& stream) {
  Stream& origin = *launch_.streams.front();
  device().wait(origin, device().record(stream));
  for (const auto& step : capture_->steps_) step(launch_);
  device().wait(stream, device().record(origin));
}

}  // namespace zea::testing
