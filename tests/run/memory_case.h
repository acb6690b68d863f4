// Runs that lack memory: what their error says fits, and whether it does.
#pragma once
#include <set>

#include "run/memory_advice.h"
#include "run/training_run.h"

namespace quire::test {

/// Activations take most of it.
inline Config memory_config(const Scratch& scratch, const std::string& run, std::vector<std::string> overrides = {}) {
  overrides.insert(overrides.begin(), {"train.seq_len=64", "train.global_batch_size=32", "train.microbatch_size=32", "train.max_steps=1", "eval.interval=0", "data.eval_fraction=0"});
  return small_config(scratch, run, overrides);
}

/// Runs under `limits` (bytes), by `limited`, which makes the settings that put a limit in force. Those that fit end their step; the errors of the others name users and
/// settings, and with these settings the run fits. Returns the settings that were said, "" for none that would do.
template <class Limited>
std::set<std::string> advice_under(const std::vector<int64_t>& limits, Limited&& limited) {
  std::set<std::string> said;
  Scratch scratch;
  int runs = 0;
  for (const int64_t limit : limits) {
    std::vector<std::string> overrides = limited(limit);
    try {
      run_training(memory_config(scratch, fmt::format("run-{}", runs++), overrides));
      BOOST_TEST_MESSAGE("fits in " << limit);
    } catch (const OutOfMemoryError& error) {
      const std::string text = error.what(), before = "what would fit: ";
      BOOST_TEST(text.find("biggest users: ") != std::string::npos, text);
      const size_t at = text.find(before);
      if (at == std::string::npos) {
        BOOST_TEST(text.find("no setting of train.activation_checkpointing and train.microbatch_size makes it fit") != std::string::npos, text);
        said.insert("");
        continue;
      }
      std::istringstream settings(text.substr(at + before.size()));
      for (std::string setting; settings >> setting;) overrides.push_back(setting);
      said.insert(text.substr(at + before.size()));
      try {
        run_training(memory_config(scratch, fmt::format("run-{}", runs++), overrides));
      } catch (const OutOfMemoryError& again) {
        BOOST_ERROR("under " << limit << " bytes: " << text << "; and with it: " << again.what());
      }
    }
  }
  return said;
}

}  // namespace quire::test
