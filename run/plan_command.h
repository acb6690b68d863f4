// What the program `plan` does, apart from its command line.
#pragma once
#include <optional>
#include <string>
#include <vector>

namespace quire {

struct PlanOptions {
  std::string config;                    ///< path
  std::vector<std::string> overrides;
  int64_t step = 1, microbatch = 0;
  std::string lengths;                   ///< a law of `drawn_corpus` instead of the config's data; "" = the data
  std::string flops, attention_flops, link, latency;  ///< quantities; "" = measured, or what `flops` makes of it
  std::string memory_limit;              ///< bytes of a rank; "" = none
  std::optional<std::string> svg, trace; ///< files to write
  std::string picture;                   ///< of --svg: pipeline, context; "" = pipeline where there is one
  bool json = false;
};

/// The text to print. Writes the files that are asked for. Throws typed errors.
std::string run_plan(const PlanOptions& options);

/// `80GiB`, `400T`, `50 GB/s`, `400e12`, `5us`: a number of 0 or more, a prefix (k M G T P: powers of 1000; Ki Mi Gi Ti: of 1024; m u n: small ones) and `unit` or none. Throws
/// ConfigError that names `option`.
double quantity(const std::string& option, const std::string& text, const std::string& unit);

}  // namespace quire
