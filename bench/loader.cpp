#include "bench/loader.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "bench/common.h"
#include "data/loader.h"
#include "data/prepare.h"
#include "runtime/error.h"
#include "runtime/random.h"

namespace quire::bench {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

/// Of the whole process: helpers of prepare and loader count.
double processor_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Removed when it goes out of scope, if it is our own.
class Scratch {
 public:
  explicit Scratch(const std::string& given) : own_(given.empty()) {
    if (!own_) {
      path_ = given;
      disk().make_directories(path_);
      return;
    }
    std::string name = (fs::temp_directory_path() / "quire-bench-XXXXXX").string();
    if (!::mkdtemp(name.data())) fail<FileError>("bench", "no folder {} can be made; name one with --scratch", name);
    path_ = name;
  }
  ~Scratch() {
    std::error_code ignored;
    if (own_) fs::remove_all(path_, ignored);
  }
  std::string path(const std::string& name) const { return path_ + "/" + name; }

 private:
  bool own_;
  std::string path_;
};

/// Documents of words, a line of % between them: lengths as of fortunes, some long ones.
std::string made_up(int64_t bytes) {
  static const char* const words[] = {"the", "of", "a", "row", "and", "packed", "document", "that", "is", "boundary", "in", "token", "to", "gradient", "it", "machine"};
  std::string text;
  for (uint64_t number = 0; static_cast<int64_t>(text.size()) < bytes; ++number) {
    const uint64_t count = 5 + random_bits(6, 0, number, 0) % (number % 50 == 0 ? 3000 : 80);
    for (uint64_t i = 1; i <= count; ++i) {
      text += words[random_bits(6, 0, number, i) % std::size(words)];
      text += i % 12 == 0 ? '\n' : ' ';
    }
    text += "\n%\n";
  }
  return text;
}

/// Text of a file, or of a folder's files with a line of % after each.
std::string read_all(const std::string& path) {
  std::vector<fs::path> files;
  if (fs::is_directory(path)) {
    for (const auto& entry : fs::directory_iterator(path))
      if (entry.is_regular_file() && !entry.path().has_extension()) files.push_back(entry.path());
  } else {
    files.push_back(path);
  }
  std::ranges::sort(files);
  std::string text;
  for (const fs::path& file : files) text.append(read_text(disk(), file.string())).append("\n%\n");
  if (text.empty()) fail<DataError>("bench", "--text is {}, where no text is", path);
  return text;
}

/// Writes text of about so many bytes; what it is made of, in words.
std::string write_text(const LoaderBenchOptions& options, const std::string& path) {
  const std::string fortunes = "/usr/share/games/fortunes";
  const int64_t bytes = options.megabytes * 1'000'000;
  std::string source = options.text, part;
  if (source.empty() && fs::is_directory(fortunes)) source = fortunes;
  part = source.empty() ? made_up(std::min<int64_t>(bytes, 16'000'000)) : read_all(source);
  std::ofstream file(path, std::ios::binary);
  int64_t written = 0;
  for (; written < bytes; written += static_cast<int64_t>(part.size())) file << part;
  if (!file.flush()) fail<FileError>("bench", "{} can not be written", path);
  return fmt::format("{}, {:.1f} MB, repeated to {:.1f} MB", source.empty() ? "made-up text" : source, static_cast<double>(part.size()) / 1e6, static_cast<double>(written) / 1e6);
}

void measure(const LoaderBenchOptions& options, LoaderBenchLine& line, const std::function<void()>& once, const std::function<void()>& before) {
  for (int64_t round = 0; round < options.rounds; ++round) {
    before();
    const double processor = processor_seconds();
    const Clock::time_point start = Clock::now();
    once();
    line.processor.push_back(processor_seconds() - processor);
    line.wall.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    if (options.progress) options.progress(fmt::format("{}, round {} of {}: {:.1f} {}/s", line.what, round + 1, options.rounds, line.amount / line.processor.back(), line.unit));
  }
}

/// Reads one epoch in the caller's thread; tokens that came.
int64_t read_epoch(const std::shared_ptr<const Corpus>& corpus, const LoaderBenchOptions& options, PackingStrategy strategy) {
  LoaderSettings settings;
  settings.packing.seq_len = options.tokens;
  settings.packing.strategy = strategy;
  settings.packing.epochs = 1;
  settings.global_batch_size = settings.microbatch_size = options.rows;
  settings.prefetch = 0;
  Loader loader(corpus, settings);
  int64_t tokens = 0;
  for (LoadedStep step = loader.next_step(); !step.empty(); step = loader.next_step()) tokens += step.plan.tokens;
  return tokens;
}

}  // namespace

LoaderBenchResult bench_loader(const LoaderBenchOptions& options) {
  if (options.megabytes < 1 || options.megabytes > 100'000) fail<ConfigError>("bench", "--megabytes is {}; allowed: 1 to 100000", options.megabytes);
  if (options.tokens < 1 || options.rows < 1 || options.rounds < 1)
    fail<ConfigError>("bench", "--tokens is {}, --rows {} and --rounds {}; all are at least 1", options.tokens, options.rows, options.rounds);
  const Scratch scratch(options.scratch);
  LoaderBenchResult result;
  result.machine = machine_name();
  result.date = today();
  result.text = write_text(options, scratch.path("text.txt"));

  PrepareSettings settings;
  settings.inputs = {scratch.path("text.txt")};
  settings.output = scratch.path("corpus");
  settings.text.separator.emplace("%");
  PrepareSummary summary;
  LoaderBenchLine prepared{.what = "prepare, bytes", .unit = "MB", .goal = 50, .amount = static_cast<double>(fs::file_size(settings.inputs[0])) / 1e6};
  measure(options, prepared, [&] { summary = prepare(settings); }, [&] { fs::remove_all(settings.output); });
  result.documents = summary.documents;
  result.tokens = summary.tokens;
  result.bytes = summary.text_bytes;
  result.lines.push_back(prepared);

  CorpusOptions opening;
  opening.verify = CorpusOptions::Verify::never;  // its digest was just made
  const std::shared_ptr<const Corpus> corpus = Corpus::open(settings.output, opening);
  for (const PackingStrategy strategy : {PackingStrategy::concat, PackingStrategy::bfd}) {
    LoaderBenchLine line{.what = fmt::format("loader and packer, {}", name_of(strategy)), .unit = "million tokens", .goal = 20,
                         .amount = static_cast<double>(read_epoch(corpus, options, strategy)) / 1e6};  // which also fills the disk cache
    measure(options, line, [&] { read_epoch(corpus, options, strategy); }, [] {});
    result.lines.push_back(line);
  }
  return result;
}

std::string LoaderBenchResult::markdown() const {
  std::string report = fmt::format("Data on {}, {}: {}; {} documents, {} tokens. Per core, by processor time, from the disk cache.\n\n", machine, date, text, documents, tokens);
  report += "| | per second | quartiles | by wall time | goal |\n|---|---:|---|---:|---:|\n";
  for (const LoaderBenchLine& line : lines) {
    const Spread seconds = spread_of(line.processor);
    report += fmt::format("| {} | {:.1f} {} | {:.1f} to {:.1f} | {:.1f} | {:g} |\n", line.what, line.rate(), line.unit, line.amount / seconds.high, line.amount / seconds.low,
                        line.amount / median_of(line.wall), line.goal);
  }
  return report;
}

std::string LoaderBenchResult::to_json() const {
  nlohmann::ordered_json object = {{"machine", machine}, {"date", date}, {"text", text}, {"documents", documents}, {"tokens", tokens}, {"text_bytes", bytes}, {"lines", nlohmann::ordered_json::array()}};
  for (const LoaderBenchLine& line : lines)
    object["lines"].push_back({{"what", line.what}, {"unit", line.unit}, {"per_second", line.rate()}, {"goal", line.goal}, {"processor_seconds", line.processor}, {"wall_seconds", line.wall}});
  return object.dump();
}

}  // namespace quire::bench
