#include "run/config_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/error.h"

namespace quire {
namespace {

constexpr double unlimited = std::numeric_limits<double>::infinity(), most_count = 2147483647, most_rows = 16777216;

using Slot = ConfigSlot (*)(Config&);

ConfigKey number(const char* section, const char* name, Slot slot, double least, double most, const char* doc) {
  return {.section = section, .name = name, .slot = slot, .doc = doc, .least = least, .most = most};
}
ConfigKey text(const char* section, const char* name, Slot slot, const char* doc) {
  return {.section = section, .name = name, .slot = slot, .doc = doc};
}
ConfigKey choice(const char* section, const char* name, Slot slot, std::vector<std::string> choices, const char* doc) {
  return {.section = section, .name = name, .slot = slot, .doc = doc, .choices = std::move(choices)};
}
ConfigKey path(const char* section, const char* name, Slot slot, const char* doc) {
  return {.section = section, .name = name, .slot = slot, .doc = doc, .is_path = true};
}
ConfigKey above(ConfigKey key) { key.above_least = true; return key; }
ConfigKey below(ConfigKey key) { key.below_most = true; return key; }
ConfigKey differs(ConfigKey key) { key.may_differ = true; return key; }
ConfigKey or_file(ConfigKey key, const char* ending) { key.file_ending = ending; return key; }
ConfigKey alias(ConfigKey key) { key.stored = false; return key; }
ConfigKey later(ConfigKey key, const char* why) { key.later = why; return key; }
#define SLOT(member) [](Config& config) -> ConfigSlot { return &config.member; }

void add_run(std::vector<ConfigKey>& keys) {
  keys.push_back(differs(path("run", "dir", SLOT(run.dir), "Run folder. \"\": `runs/NAME` of the config file, below the current directory.")));
  keys.push_back(differs(number("run", "threads", SLOT(run.threads), 0, 4096, "Threads of each rank. 0: the processors this process may use, shared by the ranks on the machine.")));
  keys.push_back(differs(choice("run", "pin_threads", SLOT(run.pin_threads), {"auto", "always", "never"},
                                "Bind each worker thread to a processor. `auto`: where the ranks on this machine have a thread for every processor.")));
  keys.push_back(differs(choice("run", "device", SLOT(run.device), {"auto", "cpu", "cuda"},
                                "Where to compute. `auto`: on CUDA devices where there is one for each rank of the machine, in f32 or bf16.")));
  keys.push_back(differs(number("run", "memory_limit", SLOT(run.memory_limit), 0, unlimited, "Bytes the run may take from the system. 0: no limit.")));
  keys.push_back(text("run", "instruction_set", SLOT(run.instruction_set), "Instruction set of the kernels. \"\": the best of the machine."));
  keys.push_back(text("run", "kernels", SLOT(run.kernels), "Kernels to use instead of the best, each as `\"op=kernel\"`."));
}

void add_model(std::vector<ConfigKey>& keys) {
  keys.push_back(number("model", "dim", SLOT(model.dim), 1, 1 << 22, "Width of the residual stream."));
  keys.push_back(number("model", "n_layers", SLOT(model.n_layers), 1, 1 << 14, "Layers."));
  keys.push_back(number("model", "n_heads", SLOT(model.n_heads), 1, 1 << 22, "Query heads."));
  keys.push_back(number("model", "n_kv_heads", SLOT(model.n_kv_heads), 0, 1 << 22, "Key and value heads, a divisor of `n_heads`. 0: `n_heads`."));
  keys.push_back(number("model", "head_dim", SLOT(model.head_dim), 0, 1 << 22, "Size of a head, even. 0: `dim / n_heads`."));
  keys.push_back(number("model", "vocab_size", SLOT(model.vocab_size), 1, most_count, "Token ids; for the byte tokenizer 257 (256 bytes, EOS), or 258 with BOS (prepare --bos)."));
  keys.push_back(number("model", "ffn_hidden_dim", SLOT(model.ffn_hidden_dim), 0, 1 << 22,
                        "Width inside the feed-forward layer. 0: 8/3 of `dim`, rounded up to a multiple of 16."));
  keys.push_back(number("model", "max_seq_len", SLOT(model.max_seq_len), 1, most_count,
                        "Longest document the model is meant for, tokens. Where not given, at least `train.seq_len`."));
  keys.push_back(number("model", "norm_eps", SLOT(model.norm_eps), 0, unlimited, "Added to the mean square in rmsnorm."));
  keys.push_back(above(number("model", "rope_theta", SLOT(model.rope_theta), 0, unlimited, "Base of the rotary frequencies.")));
  keys.push_back(number("model", "init_std", SLOT(model.init_std), 0, unlimited, "Standard deviation of initial weights."));
  keys.push_back(text("model", "qk_norm", SLOT(model.qk_norm), "Rmsnorm of every query and key head, as in Qwen3."));
  keys.push_back(text("model", "tie_embeddings", SLOT(model.tie_embeddings), "The output layer uses the embedding's weights."));
  keys.push_back(number("model", "sliding_window", SLOT(model.sliding_window), 0, most_count,
                        "Tokens a query sees, itself included: one integer for all layers or one per layer. 0: the whole document."));
  keys.push_back(choice("model", "attention_backend", SLOT(model.attention_backend), {"block", "dense", "cudnn"},
                        "`block`: tiled, skips what no document needs; `dense`: the reference with a whole mask, for the CPU; `cudnn`: cuDNN's kernels, for CUDA devices of "
                        "compute capability 9.0, in bf16 (layers with a sliding window use `block`)."));
}

void add_train(std::vector<ConfigKey>& keys) {
  keys.push_back(number("train", "seq_len", SLOT(train.seq_len), 1, most_rows, "Most input tokens of a row."));
  keys.push_back(number("train", "global_batch_size", SLOT(train.global_batch_size), 0, most_rows,
                        "Rows per step, the same in every layout. 0: `batch_size * grad_accum_steps` where given, else 8."));
  keys.push_back(number("train", "microbatch_size", SLOT(train.microbatch_size), 0, most_rows,
                        "Rows computed at once, a divisor of `global_batch_size`. 0: all of them."));
  keys.push_back(alias(number("train", "batch_size", SLOT(train.batch_size), 0, most_rows, "Another name of `microbatch_size`. 0: not given.")));
  keys.push_back(alias(number("train", "grad_accum_steps", SLOT(train.grad_accum_steps), 0, most_rows, "Microbatches per step. 0: not given.")));
  keys.push_back(differs(number("train", "max_steps", SLOT(train.max_steps), 1, most_count, "Steps.")));
  keys.push_back(number("train", "grad_clip_norm", SLOT(train.grad_clip_norm), 0, unlimited, "Largest global gradient norm. 0: no clipping."));
  keys.push_back(number("train", "seed", SLOT(train.seed), 0, unlimited, "Decides the initial weights."));
  keys.push_back(number("train", "data_seed", SLOT(train.data_seed), 0, unlimited, "Decides the order of documents."));
  keys.push_back(choice("train", "mixed_precision", SLOT(train.mixed_precision), {"f64", "f32", "bf16"},
                        "Storage of weights and activations; bf16 keeps f32 master weights and accumulates in f32."));
  keys.push_back(differs(choice("train", "activation_checkpointing", SLOT(train.activation_checkpointing), {"none", "attention", "full"},
                                "What is computed again in backward instead of kept. Changes no bit.")));
  keys.push_back(number("train", "z_loss_weight", SLOT(train.z_loss_weight), 0, unlimited, "Weight of the squared log-sum-exp of the logits."));
  keys.push_back(differs(number("train", "max_non_finite_steps", SLOT(train.max_non_finite_steps), 1, most_count,
                                "Steps in a row with a non-finite loss or gradient that stop the run; each changes no weight.")));
}

void add_optimizer(std::vector<ConfigKey>& keys) {
  keys.push_back(choice("optimizer", "name", SLOT(optimizer.name), {"adamw"}, "Optimizer."));
  keys.push_back(above(number("optimizer", "lr", SLOT(optimizer.lr), 0, unlimited, "Highest learning rate of the schedule.")));
  keys.push_back(number("optimizer", "weight_decay", SLOT(optimizer.weight_decay), 0, unlimited, "Decay of matrices; vectors do not decay."));
  keys.push_back(below(number("optimizer", "betas", SLOT(optimizer.betas), 0, 1, "Decay of the two moments.")));
  keys.push_back(above(number("optimizer", "eps", SLOT(optimizer.eps), 0, unlimited, "Added to the root of the second moment.")));
  keys.push_back(choice("scheduler", "name", SLOT(scheduler.name), {"constant", "cosine", "linear", "wsd"},
                        "Learning rate after warm-up; wsd is constant for `stable_steps`, then decays."));
  keys.push_back(number("scheduler", "warmup_steps", SLOT(scheduler.warmup_steps), 0, most_count, "Steps of linear warm-up."));
  keys.push_back(number("scheduler", "decay_steps", SLOT(scheduler.decay_steps), 0, most_count,
                        "Steps of decay. 0: what warm-up and `stable_steps` leave of `train.max_steps`. Not for constant."));
  keys.push_back(number("scheduler", "stable_steps", SLOT(scheduler.stable_steps), 0, most_count, "Constant steps before the decay of wsd."));
  keys.push_back(number("scheduler", "min_lr_ratio", SLOT(scheduler.min_lr_ratio), 0, 1,
                        "Lowest over highest learning rate of cosine, linear and wsd."));
}

void add_data(std::vector<ConfigKey>& keys) {
  keys.push_back(differs(path("data", "dataset_path", SLOT(data.dataset_path),
                              "Folder made by `prepare`, or a `.bin`, `.npy` or text file. Required. (A resumed run compares the data's digest.)")));
  keys.push_back(text("data", "pack_sequences", SLOT(data.pack_sequences),
                      "Several documents in a row, kept apart. false: every document, or piece of one, has a row of its own."));
  keys.push_back(choice("data", "strategy", SLOT(data.strategy), {"concat", "bfd"},
                        "How rows are packed. `concat`: the stream cut into rows; `bfd`: best-fit decreasing, whole documents."));
  keys.push_back(choice("data", "overflow", SLOT(data.overflow), {"split", "truncate", "refuse"},
                        "What bfd does with a document longer than a row; concat always splits."));
  keys.push_back(number("data", "buffer_documents", SLOT(data.buffer_documents), 1, most_rows, "Documents that bfd fits together at a time."));
  keys.push_back(below(number("data", "eval_fraction", SLOT(data.eval_fraction), 0, 1, "Share of the documents held out. Not with `eval_path`.")));
  keys.push_back(differs(path("data", "eval_path", SLOT(data.eval_path), "Held-out documents of their own, in any form `dataset_path` takes.")));
  keys.push_back(differs(number("data", "epochs", SLOT(data.epochs), 0, most_count, "The run also ends after this many epochs. 0: only `train.max_steps` ends it.")));
  keys.push_back(text("data", "shuffle", SLOT(data.shuffle), "Documents in another order each epoch."));
  keys.push_back(choice("data", "arrange", SLOT(data.arrange), {"none", "cost"},
                        "Which rows of a step make a microbatch. `none`: in the order of packing; `cost`: so that microbatches cost alike (attention follows the documents), cheap ones first and "
                        "last. The step's rows are the same, and so is their arrangement in every layout; gradients are added in its order."));
  keys.push_back(choice("data", "tokenizer", SLOT(data.tokenizer), {"byte"}, "Tokenizer of text files."));
  keys.push_back(text("data", "separator", SLOT(data.separator), "Line between two documents of a text file. \"\": the file is one document."));
  keys.push_back(choice("data", "tokens_dtype", SLOT(data.tokens_dtype), {"", "u16", "u32", "i32", "i64"},
                        "Element type of a raw `.bin` file; never guessed."));
  keys.push_back(number("data", "eos_id", SLOT(data.eos_id), -1, most_count, "Token that ends a document in `.bin` and `.npy` files; never guessed. -1: not given."));
}

void add_distributed(std::vector<ConfigKey>& keys) {
  const auto add = [&](ConfigKey key) { keys.push_back(differs(std::move(key))); };
  add(number("distributed", "dp_replicate", SLOT(distributed.dp_replicate), 1, most_count, "Replicas of the model."));
  add(later(number("distributed", "dp_shard", SLOT(distributed.dp_shard), -1, most_count, "Ranks a replica is sharded over. -1: those that pp and dp_replicate leave, which is 1 for now."),
            "sharded state is not there yet"));
  add(later(number("distributed", "tp", SLOT(distributed.tp), 1, most_count, "Tensor parallel ranks."), "tensor parallelism is not there yet"));
  add(number("distributed", "pp", SLOT(distributed.pp), 1, most_count, "Pipeline ranks."));
  add(number("distributed", "cp", SLOT(distributed.cp), 1, most_count, "Context parallel ranks: they share each microbatch's tokens. At most `train.seq_len`."));
  add(or_file(choice("distributed", "pp_schedule", SLOT(distributed.pp_schedule), {"gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "zb_v"},
                     "Order of the pipeline's forward and backward passes. `zb_h1` and `zb_v` compute weight gradients apart, in what would be idle time (Qi et al., 2023 and 2024). A file holds your own schedule in "
                     "PyTorch's compute-only notation: a line for each of the `pp` ranks, `2F0` stage 2, forward, microbatch 0; `0B3` backward; `1I2` input gradients; `1W2` weight gradients. Its stages are at most "
                     "`model.n_layers`, its microbatches those of a step and replica; a step at the end of the data leaves out those that it lacks."),
              ".csv"));
  add(number("distributed", "pp_chunks", SLOT(distributed.pp_chunks), 1, most_count,
             "Stages of each pipeline rank. interleaved_1f1b takes any number, zb_v has 2 (left out or not), others have 1; a file says it itself. `pp * pp_chunks` is at most `model.n_layers`."));
  add(number("distributed", "pp_layers", SLOT(distributed.pp_layers), 0, 1 << 14,
             "Decoder layers of each stage; the first also holds the embedding, the last one norm and head. Empty: balanced by cost."));
  add(choice("distributed", "cp_layout", SLOT(distributed.cp_layout), {"auto", "contiguous", "zigzag", "balanced"},
             "Who holds which tokens. `contiguous`: equal parts in order; `zigzag`: two parts each, from both ends; `balanced`: planned over the documents, so that work and tokens are "
             "equal and least is sent; `auto`: what is fastest, to within 3 %, by the plans' costs and this machine's speeds, measured once and kept in `choices.json`."));
  add(choice("distributed", "cp_exchange", SLOT(distributed.cp_exchange), {"auto", "ring", "gather", "heads"},
             "How keys and values travel. `ring`: step by step, in backward again; `gather`: all at once, kept for backward; `heads`: each rank gets all tokens of some heads "
             "(`cp_layout = \"contiguous\"`, `n_heads` a multiple of `cp`, `n_kv_heads` a multiple or a divisor); `auto` as above."));
  add(above(number("distributed", "watchdog_seconds", SLOT(distributed.watchdog_seconds), 0, unlimited,
                   "Longest wait for one message of another rank; then the run ends and says what was waited for.")));
}

void add_rest(std::vector<ConfigKey>& keys) {
  keys.push_back(differs(number("checkpoint", "interval", SLOT(checkpoint.interval), 0, most_count,
                                "Steps between checkpoints. 0: only at the end and when stopped.")));
  keys.push_back(differs(number("checkpoint", "keep_last_n", SLOT(checkpoint.keep_last_n), 0, most_count, "Checkpoints kept. 0: all.")));
  keys.push_back(differs(path("checkpoint", "load_path", SLOT(checkpoint.load_path), "Where the first weights come from (a run folder, a checkpoint or a Hugging Face folder) where the run folder has no checkpoint; steps, optimizer and data start anew.")));
  keys.push_back(differs(number("metrics", "log_interval", SLOT(metrics.log_interval), 1, most_count, "Steps between logged lines.")));
  keys.push_back(differs(text("metrics", "trace", SLOT(metrics.trace),
                              "Measures when each rank computes and receives what in a training step, and keeps it for the first and the logged steps (the last 20 of them) in `traces/step-NNNNNNNN.json` of the "
                              "run folder: Chrome's trace format, for Perfetto or chrome://tracing. Ranks on one machine share a clock; those of other machines are set by pings before each trace.")));
  keys.push_back(differs(number("eval", "interval", SLOT(eval.interval), 0, most_count, "Steps between evaluations. 0: only at the end.")));
  keys.push_back(differs(number("eval", "steps", SLOT(eval.steps), 0, most_count, "Batches of an evaluation. 0: all held-out documents.")));
}

#undef SLOT

/// A bound as a person writes it.
std::string plain(double value) {
  return value == std::floor(value) && std::abs(value) < 1e15 ? fmt::format("{}", static_cast<int64_t>(value)) : fmt::format("{}", value);
}

std::string range_text(const ConfigKey& key, const char* noun) {
  if (key.above_least) return fmt::format("{} above {}", noun, plain(key.least));
  if (key.most == unlimited) return fmt::format("{} of {} or more", noun, plain(key.least));
  return fmt::format("{} from {} to {}{}", noun, plain(key.least), key.below_most ? "below " : "", plain(key.most));
}

}  // namespace

const std::vector<ConfigKey>& config_schema() {
  static const std::vector<ConfigKey> schema = [] {
    std::vector<ConfigKey> keys;
    add_run(keys);
    add_model(keys);
    add_train(keys);
    add_optimizer(keys);
    add_data(keys);
    add_distributed(keys);
    add_rest(keys);
    return keys;
  }();
  return schema;
}

const std::vector<std::string>& config_sections() {
  static const std::vector<std::string> sections = [] {
    std::vector<std::string> names;
    for (const ConfigKey& key : config_schema())
      if (names.empty() || names.back() != key.section) names.push_back(key.section);
    return names;
  }();
  return sections;
}

const ConfigKey* find_key(std::string_view section, std::string_view name) {
  for (const ConfigKey& key : config_schema())
    if (key.section == section && key.name == name) return &key;
  return nullptr;
}

std::string ConfigKey::type_name() const {
  Config config;
  switch (slot(config).index()) {
    case 0: return "integer";
    case 1: return "number";
    case 2: return "boolean";
    case 3: return is_path ? "path" : "text";
    case 4: return "integer or list";
    case 5: return "list of numbers";
    default: return "list of texts";
  }
}

std::string ConfigKey::allowed() const {
  Config config;
  switch (slot(config).index()) {
    case 0: return range_text(*this, "an integer");
    case 1: return range_text(*this, "a number");
    case 2: return "true or false";
    case 3: {
      if (choices.empty()) return is_path ? "a path as text" : "a text";
      std::vector<std::string> now;
      for (const std::string& choice : choices)
        now.push_back(toml_text(choice));
      std::string list;
      if (!file_ending.empty()) now.push_back("a path that ends in " + file_ending);
      for (size_t i = 0; i < now.size(); ++i) list += (i == 0 ? "" : i + 1 == now.size() ? " or " : ", ") + now[i];
      return list;
    }
    case 4: return range_text(*this, "an integer") + ", or a list of such";
    case 5: return range_text(*this, "two numbers, each");
    default: return "a list of texts";
  }
}

}  // namespace quire
