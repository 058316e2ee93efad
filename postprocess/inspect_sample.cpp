// SPDX-License-Identifier: Apache-2.0
// A sample of a data set as a reader checks it: its text, in which what is trained on is marked,
// and its items.
#include <unistd.h>

#include <algorithm>
#include <sstream>

#include "core/text.hpp"
#include "inspect.hpp"

namespace zea {
namespace {

/// Around what is learnt: bold on a terminal, brackets elsewhere.
struct Marks {
  const char* begin;
  const char* end;
};

Marks marks_of_output() {
  return isatty(STDOUT_FILENO) ? Marks{"\x1b[1m", "\x1b[0m"} : Marks{"[[", "]]"};
}

std::string text_of(int32_t token, const std::vector<std::string>& pieces) {
  const bool is_known = token >= 0 && static_cast<size_t>(token) < pieces.size();
  return is_known ? pieces[static_cast<size_t>(token)] : "";
}

/// A special token as its tokenizer calls it; where the data set does not hold that, its id.
std::string special_text(int32_t token, const DatasetReader& dataset) {
  const std::string text = text_of(token, dataset.texts().special_texts);
  return text.empty() ? "<" + std::to_string(token) + ">" : text;
}

/// "<image>" or "<5>", so many times: "<image x 3>".
std::string run_text(const std::string& text, size_t count) {
  const bool is_marked = text.starts_with('<') && text.ends_with('>');
  return "<" + (is_marked ? text.substr(1, text.size() - 2) : text) + " x " +
         std::to_string(count) + ">";
}

bool is_placeholder(int32_t token, const Placeholders& all) {
  return token >= 0 && (token == all.image || token == all.audio || token == all.video);
}

/// Runs of a placeholder are one word, of what is learnt between marks; lines stay lines.
std::string marked_text(const DatasetSample& sample, const DatasetReader& dataset,
                        const Marks& marks) {
  std::string text, run;
  bool is_learnt = false;
  const auto end_run = [&] {
    text += printable(run);
    run.clear();
  };
  for (size_t i = 0; i < sample.tokens.size();) {
    const int32_t token = sample.tokens[i];
    const bool learns = i > 0 && sample.loss_mask[i] == 1;
    size_t end = i + 1;
    while (is_placeholder(token, dataset.placeholders()) && end < sample.tokens.size() &&
           sample.tokens[end] == token)
      ++end;
    if (learns != is_learnt) {
      end_run();
      text += learns ? marks.begin : marks.end;
      is_learnt = learns;
    }
    const std::string bytes = text_of(token, dataset.texts().token_bytes);
    if (is_placeholder(token, dataset.placeholders()))
      run += run_text(special_text(token, dataset), end - i);
    else
      run += bytes.empty() ? special_text(token, dataset) : bytes;
    i = end;
  }
  end_run();
  return text + (is_learnt ? marks.end : "");
}

std::string words_of(const DatasetItem& item) {
  const std::string bytes = grouped(static_cast<int64_t>(item.bytes.size())) + " bytes";
  if (item.type == DatasetItem::Type::Audio)
    return item.rate == 0 ? "clip of unknown length, " + bytes
                          : "clip of " + grouped(item.samples) + " samples at " +
                                std::to_string(item.rate) + " Hz, " + bytes;
  const std::string size = item.height == 0
                               ? "unknown size"
                               : std::to_string(item.height) + " x " + std::to_string(item.width);
  if (item.type == DatasetItem::Type::Video)
    return "video of " + std::to_string(item.frame_ends.size()) + " frames of " + size + ", " +
           bytes;
  return "image of " + size + (item.raw ? " raw, " : ", ") + bytes;
}

/// " (a.jpg)", the file of item `number`; empty where it is not known.
std::string item_file(const DatasetSample& sample, size_t number) {
  std::istringstream lines(sample.source);
  std::string line;
  for (size_t skipped = 0; skipped <= number + 1; ++skipped)
    if (!std::getline(lines, line)) return "";
  return line.empty() ? "" : " (" + line + ")";
}

}  // namespace

void inspect_sample(const DatasetReader& dataset, int64_t id) {
  const DatasetSample sample = dataset.read(id);
  const auto learnt = std::count(sample.loss_mask.begin() + 1, sample.loss_mask.end(), uint8_t{1});
  print_line("%s: %s tokens, %s of them trained on", dataset.words(id).c_str(),
             grouped(static_cast<int64_t>(sample.tokens.size())).c_str(), grouped(learnt).c_str());
  for (size_t i = 0; i < sample.items.size(); ++i)
    print_line("  %s%s", words_of(sample.items[i]).c_str(), item_file(sample, i).c_str());
  if (sample.label >= 0 && static_cast<size_t>(sample.label) < dataset.texts().classes.size())
    print_line("  label %d: %s", sample.label,
               dataset.texts().classes[static_cast<size_t>(sample.label)].c_str());
  for (const std::string& answer : sample.answers) print_line("  right answer: %s", answer.c_str());
  std::printf("%s\n", marked_text(sample, dataset, marks_of_output()).c_str());
}

}  // namespace zea
