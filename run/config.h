// One run's settings: the sections and keys of its TOML file. docs/config.md lists them; run/config_schema.cpp defines them.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "parallel/mesh.h"
#include "runtime/dtype.h"
#include "runtime/file.h"

namespace quire {

/// Everything that describes a run. The comments give units and what 0 or "" mean; ranges and choices stand in the schema.
/// Embedders may fill one in by hand and pass it through `resolved`.
struct Config {
  struct Run {
    std::string dir;                     ///< run folder; "" = runs/NAME of the config file, below the current directory
    int64_t threads = 0;                 ///< of each rank; 0 = the processors this process may use, shared by the ranks on the machine
    std::string pin_threads = "auto";
    std::string device = "auto";         ///< auto, cpu, cuda
    int64_t memory_limit = 0;            ///< bytes, 0 = no limit
    std::string instruction_set;         ///< "" = the best of this machine
    std::vector<std::string> kernels;    ///< "op=kernel", instead of the best one
    bool operator==(const Run&) const = default;
  };
  struct Train {
    int64_t seq_len = 1024;              ///< inputs per row, tokens
    int64_t global_batch_size = 0;       ///< rows per step; 0 = batch_size x grad_accum_steps where given, else 8
    int64_t microbatch_size = 0;         ///< rows; 0 = the whole global batch
    int64_t batch_size = 0;              ///< another name of microbatch_size; 0 after `resolved`
    int64_t grad_accum_steps = 0;        ///< microbatches per step; 0 = not given, and after `resolved`
    int64_t max_steps = 1000;
    double grad_clip_norm = 1.0;         ///< 0 = no clipping
    int64_t seed = 42;                   ///< initial weights
    int64_t data_seed = 42;              ///< order of documents
    std::string mixed_precision = "f32"; ///< f64, f32, bf16: what weights and activations are stored in
    std::string activation_checkpointing = "none";  ///< none, attention, full
    double z_loss_weight = 0;
    int64_t max_non_finite_steps = 5;    ///< that many in a row stop the run
    bool operator==(const Train&) const = default;
  };
  struct Optimizer {
    std::string name = "adamw";
    double lr = 3e-3;                    ///< the highest learning rate of the schedule
    double weight_decay = 0.1;           ///< on matrices only
    std::vector<double> betas = {0.9, 0.95};
    double eps = 1e-8;
    bool operator==(const Optimizer&) const = default;
  };
  struct Scheduler {
    std::string name = "cosine";         ///< constant, cosine, linear, wsd
    int64_t warmup_steps = 0;
    int64_t decay_steps = 0;             ///< 0 = what is left of max_steps after warm-up and stable_steps
    int64_t stable_steps = 0;            ///< wsd only
    double min_lr_ratio = 0.1;           ///< lowest over highest learning rate; of cosine, linear and wsd
    bool operator==(const Scheduler&) const = default;
  };
  struct Data {
    std::string dataset_path;            ///< folder made by prepare, or a .bin, .npy or text file
    bool pack_sequences = true;          ///< false = one document, or piece of one, per row
    std::string strategy = "concat";     ///< concat, bfd
    std::string overflow = "split";      ///< split, truncate, refuse: a document longer than a row, not concat
    int64_t buffer_documents = 8192;     ///< documents that bfd looks at together
    double eval_fraction = 0;            ///< share of the documents held out
    std::string eval_path;               ///< held-out documents of their own
    int64_t epochs = 0;                  ///< the run also ends after this many; 0 = no such end
    bool shuffle = true;
    std::string arrange = "none";        ///< none, cost: rows of a step, to microbatches
    std::string tokenizer = "byte";      ///< for text files
    std::string separator;               ///< line between two documents of a text file; "" = the file is one document
    std::string tokens_dtype;            ///< u16, u32, i32, i64: of a raw .bin file
    int64_t eos_id = -1;                 ///< of .bin and .npy files; -1 = not given
    bool operator==(const Data&) const = default;
  };
  struct Distributed {
    int64_t dp_replicate = 1, dp_shard = 1, tp = 1, pp = 1, cp = 1;
    std::string pp_schedule = "1f1b";    ///< gpipe, 1f1b, interleaved_1f1b, zb_h1, zb_v, or the path of a .csv file
    int64_t pp_chunks = 1;               ///< stages of each pipeline rank; 2 after `resolved` for zb_v; 1 for a .csv file
    std::vector<int64_t> pp_layers;      ///< decoder layers of each stage [stages]; empty = balanced by cost
    std::string cp_layout = "balanced";  ///< auto, contiguous, zigzag, balanced
    std::string cp_exchange = "ring";    ///< auto, ring, gather, heads
    double watchdog_seconds = 600;       ///< longest wait for one message
    bool operator==(const Distributed&) const = default;
  };
  struct Checkpoint {
    int64_t interval = 0;                ///< steps; 0 = only at the end and when stopped
    int64_t keep_last_n = 2;             ///< 0 = all
    std::string load_path;               ///< checkpoint to start from where the run folder has none
    bool operator==(const Checkpoint&) const = default;
  };
  struct Metrics {
    int64_t log_interval = 10;           ///< steps
    bool trace = false;                  ///< times of logged steps' computations and transfers go into the run folder
    bool operator==(const Metrics&) const = default;
  };
  struct Eval {
    int64_t interval = 0;                ///< steps; 0 = only at the end
    int64_t steps = 0;                   ///< batches of global_batch_size rows; 0 = all held-out documents
    bool operator==(const Eval&) const = default;
  };

  Run run;
  ModelConfig model;
  Train train;
  Optimizer optimizer;
  Scheduler scheduler;
  Data data;
  Distributed distributed;
  Checkpoint checkpoint;
  Metrics metrics;
  Eval eval;

  /// Microbatches of one step. Requires a resolved config.
  int64_t microbatches() const { return train.global_batch_size / train.microbatch_size; }
  /// Whether the user's own schedule is asked for, a .csv file.
  bool has_schedule_file() const { return distributed.pp_schedule.ends_with(".csv"); }
  /// Microbatches of the replica that has most of them. Requires a resolved config.
  int64_t microbatches_of_replica() const { return (microbatches() + distributed.dp_replicate * distributed.dp_shard - 1) / (distributed.dp_replicate * distributed.dp_shard); }
  /// The type of weights and activations.
  DType dtype() const { return dtype_from(train.mixed_precision); }
  bool operator==(const Config&) const = default;
};

/// Reads a TOML file, then `section.key=value` overrides, then resolves. Relative paths in the file are relative to its folder, those
/// in overrides to the current directory; the result holds absolute paths. Throws FileError when the file can not be read and ConfigError
/// with `[file:line]` or `[command line]`, the key, what was found and what is allowed for everything else, data.dataset_path missing included.
Config load_config(const std::string& path, const std::vector<std::string>& overrides = {}, FileSystem& fs = disk());

/// The same from a text. `name` stands in messages; `folder` is what relative paths are relative to ("" = the current directory).
Config parse_config(std::string_view text, const std::string& name, const std::string& folder = {},
                    const std::vector<std::string>& overrides = {});

/// Checks ranges, choices and contradictions, and fills what depends on other keys: batch sizes, the model's defaults, paths made absolute. A schedule in a file is read
/// and checked. Resolving twice changes nothing. Throws ConfigError, and ScheduleError and FileError about such a file.
Config resolved(Config config);

/// The arrangement of ranks that a resolved config asks for; dp counts replicas.
MeshShape mesh_shape(const Config& config);

/// Every key with its value, in the schema's order: what a run folder keeps. Reading it back gives an equal config.
std::string to_toml(const Config& config);

/// Digest of the keys that must not change within a run (those `check_resumable` compares).
uint64_t digest_of(const Config& config);

/// Throws ConfigError naming the first key that may not differ between a run folder's config and the one now given. What changes no
/// weight may differ (threads, logging, evaluation, checkpoints, recomputation, folders), and the run's length (max_steps, epochs).
void check_resumable(const Config& stored, const Config& now);

/// The text of docs/config.md, from the schema.
std::string config_documentation();

}  // namespace quire
