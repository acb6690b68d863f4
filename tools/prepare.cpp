// prepare INPUT... --out DIR: text to token shards.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <cstdio>
#include <map>
#include <optional>

#include "data/prepare.h"
#include "runtime/digest.h"
#include "run/run_folder.h"
#include "runtime/error.h"
#include "tools/command_line.h"
#include "tools/output.h"

namespace {

volatile std::sig_atomic_t stop_signal = 0;
extern "C" void note_signal(int signal) { stop_signal = signal; }

/// A bar on a terminal, nothing elsewhere.
class ProgressBar {
 public:
  void show(int64_t done, int64_t total) {
    if (!terminal_) return;
    const auto now = std::chrono::steady_clock::now();
    if (now - shown_ < std::chrono::milliseconds(100)) return;
    shown_ = now;
    const double share = total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 1;
    const double seconds = std::chrono::duration<double>(now - begin_).count();
    const int filled = static_cast<int>(share * 30);
    fmt::print(stderr, "\r[{:-<30}] {:3.0f} %  {:.1f} of {:.1f} MB  {:.0f} MB/s  {:.0f} s left \033[K",
               std::string(static_cast<size_t>(filled), '#'), share * 100, static_cast<double>(done) / 1e6,
               static_cast<double>(total) / 1e6, static_cast<double>(done) / 1e6 / std::max(seconds, 1e-3),
               share > 0 ? seconds / share - seconds : 0);
    drawn_ = true;
  }
  ~ProgressBar() {
    if (drawn_) fmt::print(stderr, "\r\033[K");
  }

 private:
  const bool terminal_ = isatty(STDERR_FILENO) != 0;
  bool drawn_ = false;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point shown_{};
};

/// Two prepares into one folder would mix their files: the second one is refused, naming the first one's process.
class OutputLock {
 public:
  explicit OutputLock(const std::string& folder) : path_(std::filesystem::path(folder + "/").parent_path().string() + ".lock") {
    if (const auto parent = std::filesystem::path(path_).parent_path(); !parent.empty()) quire::disk().make_directories(parent.string());
    lock_.emplace(path_);
  }
  ~OutputLock() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }

 private:
  std::string path_;
  std::optional<quire::FolderLock> lock_;
};

void print_skipped(const quire::PrepareSummary& summary, bool all) {
  if (summary.skipped.empty()) return;
  std::map<std::string, int64_t> reasons;
  for (const auto& [path, reason] : summary.skipped) ++reasons[reason.substr(0, reason.find(" ("))];
  std::string counts;
  for (const auto& [reason, count] : reasons) counts += fmt::format("{}{} {}", counts.empty() ? "" : ", ", count, reason);
  fmt::print("skipped     {} ({})\n", summary.skipped.size(), counts);
  const size_t shown = all ? summary.skipped.size() : std::min<size_t>(summary.skipped.size(), 5);
  for (size_t i = 0; i < shown; ++i) fmt::print("  {}: {}\n", summary.skipped[i].first, summary.skipped[i].second);
  if (shown < summary.skipped.size()) fmt::print("  and {} more (--list-skipped lists all)\n", summary.skipped.size() - shown);
}

}  // namespace

int main(int argc, char** argv) {
  quire::PrepareSettings settings;
  std::string separator;
  bool list_skipped = false;
  quire::CommandLine app(
      "prepare",
      "Turns text into token shards with an explicit document index.\n"
      "A file is one document, or several with --separator; each line of a .jsonl file is a document: {\"text\": ...}, or\n"
      "{\"prompt\": ..., \"completion\": ...}, where the prompt is read but not learnt. Of folders every file is taken; links and\n"
      "files that are no text are skipped and reported.");
  app.option("input", settings.inputs, "files and folders").required();
  app.option("--out", settings.output, "folder of the corpus; must not be there yet").required();
  const quire::CommandLineOption given_separator = app.option("--separator", separator, "the line between documents, such as % in fortunes files");
  app.option("--tokenizer", settings.tokenizer, "byte").with_default();
  app.flag("--bos", settings.bos, "begin every document with BOS");
  app.flag("--dedup", settings.deduplicate, "leave out documents whose text came before");
  app.option("--exclude", settings.exclude,
                 "shell pattern for names, or paths inside an input folder, to leave out; may be repeated")
      .one_at_a_time();
  app.option("--text-key", settings.text.text_key, "key of the text in JSONL").with_default();
  app.option("--prompt-key", settings.text.prompt_key, "key of the prompt in JSONL").with_default();
  app.option("--completion-key", settings.text.completion_key, "key of the completion in JSONL").with_default();
  app.option("--shard-bytes", settings.shard_bytes, "largest token file").with_default().positive();
  app.flag("--list-skipped", list_skipped, "list every skipped file");
  if (const auto ended = app.parse(argc, argv)) return *ended;
  if (given_separator.given()) settings.text.separator = separator;
  std::signal(SIGINT, note_signal);
  std::signal(SIGTERM, note_signal);
  settings.stop = [] { return stop_signal != 0; };

  try {
    quire::PrepareSummary summary;
    {
      const OutputLock lock(settings.output);
      ProgressBar bar;
      settings.progress = [&bar](int64_t done, int64_t total) { bar.show(done, total); };
      summary = quire::prepare(settings);
    }
    fmt::print("documents   {} in {} files\n", summary.documents, summary.files);
    fmt::print("tokens      {}\n", summary.tokens);
    fmt::print("text        {} bytes\n", summary.text_bytes);
    fmt::print("duplicates  {}{}\n", summary.duplicates,
               summary.duplicates == 0 ? ""
               : settings.deduplicate  ? " left out"
                                       : " kept (--dedup leaves them out)");
    if (summary.empty > 0) fmt::print("empty       {} left out\n", summary.empty);
    print_skipped(summary, list_skipped);
    fmt::print("digest      {}\n", quire::to_hex(summary.digest));
    fmt::print("written to  {}\n", settings.output);
    finish_output("prepare");
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return stop_signal != 0 ? 128 + static_cast<int>(stop_signal) : 1;
  }
}
