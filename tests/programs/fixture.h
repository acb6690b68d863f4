// A small corpus, config and run on disk, as a user has them.
#pragma once
#include <map>

#include "programs/program.h"
#include "run/training_run.h"

namespace quire::test {

inline std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void store(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

/// Path below `folder` -> bytes of every file; without a run's lock and log, which every start writes to.
inline std::map<std::string, std::string> files_of(const std::string& folder) {
  std::map<std::string, std::string> all;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file() && name != "lock" && name != "log.txt") all[entry.path().lexically_relative(folder).string()] = contents(entry.path().string());
  }
  return all;
}

inline const char* small_toml = R"([run]
threads = 1
[model]
dim = 16
n_layers = 2
n_heads = 2
ffn_hidden_dim = 32
vocab_size = 258
[train]
seq_len = 48
global_batch_size = 4
microbatch_size = 2
max_steps = 8
[optimizer]
lr = 1e-2
[data]
dataset_path = "corpus"
strategy = "bfd"
eval_fraction = 0.1
[checkpoint]
interval = 2
[metrics]
log_interval = 1
[eval]
interval = 4
)";

/// text.txt, corpus/ made from it by prepare, and small.toml, in a scratch folder of its own.
struct Workshop : Scratch {
  Workshop() {
    write_text(path("text.txt"), 40);
    run_well({tool("prepare"), path("text.txt"), "--separator", "%", "--bos", "--out", path("corpus")});
    store(path("small.toml"), small_toml);
  }

  /// train small.toml with a run folder and overrides.
  std::vector<std::string> training(const std::string& run, const std::vector<std::string>& overrides = {}) const {
    std::vector<std::string> args{tool("train"), path("small.toml"), "run.dir=" + path(run)};
    args.insert(args.end(), overrides.begin(), overrides.end());
    return args;
  }
  Config config(const std::string& run, const std::vector<std::string>& overrides = {}) const {
    std::vector<std::string> all{"run.dir=" + path(run)};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return load_config(path("small.toml"), all);
  }
};

}  // namespace quire::test
