// From text to microbatches: prepare, and the loader with its packer, per core.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "bench/calm.h"

namespace quire::bench {

struct LoaderBenchOptions {
  std::string text;                ///< a file or folder; "" for Debian's fortunes where they are installed, else made-up text
  std::string scratch;             ///< folder for text and corpus; "" for one in the system's temporary folder, removed afterwards
  int64_t megabytes = 64;          ///< of text, which is repeated or made up to this size
  int64_t tokens = 2048, rows = 8;  ///< of a row; of a step
  int64_t rounds = 5;
  Tell progress;
};

struct LoaderBenchLine {
  std::string what, unit;
  double goal = 0, amount = 0;       ///< units per second; units of a round
  std::vector<double> processor, wall;  ///< seconds of each round
  double rate() const { return amount / median_of(processor); }
};

struct LoaderBenchResult {
  std::string machine, date, text;
  int64_t documents = 0, tokens = 0, bytes = 0;
  std::vector<LoaderBenchLine> lines;
  std::string markdown() const;
  std::string to_json() const;
};

/// Throws ConfigError for numbers out of range, and what prepare and the loader throw.
LoaderBenchResult bench_loader(const LoaderBenchOptions& options);

}  // namespace quire::bench
