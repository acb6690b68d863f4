// What a configuration must satisfy: each key by itself, then keys together.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "parallel/context_attention.h"
#include "parallel/schedule_csv.h"
#include "run/config_schema.h"
#include "runtime/error.h"

namespace quire {
namespace {

std::string place_of(const ConfigPlaces& places, std::string_view key, const std::string& name) {
  const auto found = places.find(key);
  return found == places.end() ? name : found->second;
}

bool in_range(const ConfigKey& key, double value) {
  return std::isfinite(value) && (key.above_least ? value > key.least : value >= key.least) && (key.below_most ? value < key.most : value <= key.most);
}

bool slot_in_range(const ConfigKey& key, const ConfigSlot& slot) {
  if (const auto* integer = std::get_if<int64_t*>(&slot)) return in_range(key, static_cast<double>(**integer));
  if (const auto* number = std::get_if<double*>(&slot)) return in_range(key, **number);
  if (const auto* list = std::get_if<std::vector<int64_t>*>(&slot)) {
    for (const int64_t value : **list)
      if (!in_range(key, static_cast<double>(value))) return false;
  }
  if (const auto* list = std::get_if<std::vector<double>*>(&slot)) {
    for (const double value : **list)
      if (!in_range(key, value)) return false;
    return (*list)->size() == 2;
  }
  return true;
}

void check_choice(const ConfigKey& key, const std::string& value, const std::string& place) {
  if (key.names_file(value)) return;
  if (key.choices.empty() || std::find(key.choices.begin(), key.choices.end(), value) != key.choices.end()) return;
  const std::string near = nearest(value, key.choices);
  fail<ConfigError>(place, "{} is {}; allowed: {}{}", key.full_name(), toml_text(value), key.allowed(),
                    near.empty() ? "" : fmt::format("; did you mean {}?", near));
}

/// The batch in Quire's keys, whichever form was given; refuses forms that disagree.
void resolve_batch(Config& config, const ConfigPlaces& places, const std::string& name) {
  Config::Train& train = config.train;
  const auto place = [&](const char* key) { return place_of(places, key, name); };
  if (train.batch_size > 0 && train.microbatch_size > 0 && train.batch_size != train.microbatch_size)
    fail<ConfigError>(place("train.batch_size"), "train.batch_size is {} but train.microbatch_size is {}; allowed: one of the two, or both equal",
                      train.batch_size, train.microbatch_size);
  const bool other_form = train.batch_size > 0 || train.grad_accum_steps > 0;
  if (train.batch_size > 0) train.microbatch_size = train.batch_size;
  const int64_t count = train.grad_accum_steps;
  if (train.global_batch_size == 0) {
    if (count > 0 && train.microbatch_size == 0)
      fail<ConfigError>(place("train.grad_accum_steps"), "train.grad_accum_steps is {} without rows per microbatch; allowed: with train.batch_size "
                        "(or train.microbatch_size) or train.global_batch_size", count);
    train.global_batch_size = other_form ? train.microbatch_size * std::max<int64_t>(count, 1) : 8;
  }
  if (count > 0 && train.microbatch_size == 0) {
    if (train.global_batch_size % count != 0)
      fail<ConfigError>(place("train.grad_accum_steps"), "train.grad_accum_steps is {}; allowed: a divisor of train.global_batch_size = {}", count,
                        train.global_batch_size);
    train.microbatch_size = train.global_batch_size / count;
  }
  if (train.microbatch_size == 0) train.microbatch_size = train.global_batch_size;
  if (count > 0 && train.microbatch_size * count != train.global_batch_size)
    fail<ConfigError>(place("train.global_batch_size"), "train.global_batch_size is {} but {} rows in each of train.grad_accum_steps = {} microbatches "
                      "make {}; allowed: {}, or leave one of the three out", train.global_batch_size, train.microbatch_size, count,
                      train.microbatch_size * count, train.microbatch_size * count);
  if (train.global_batch_size % train.microbatch_size != 0)
    fail<ConfigError>(place(train.batch_size > 0 ? "train.batch_size" : "train.microbatch_size"), "train.{} is {}; allowed: a divisor of "
                      "train.global_batch_size = {}", train.batch_size > 0 ? "batch_size" : "microbatch_size", train.microbatch_size,
                      train.global_batch_size);
  train.batch_size = train.grad_accum_steps = 0;
}

void check_schedule(const Config& config, const ConfigPlaces& places, const std::string& name) {
  const Config::Scheduler& s = config.scheduler;
  const auto place = [&](const char* key) { return place_of(places, key, name); };
  if (s.stable_steps > 0 && s.name != "wsd")
    fail<ConfigError>(place("scheduler.stable_steps"), "scheduler.stable_steps is {} but scheduler.name is {}; allowed: 0, or scheduler.name = \"wsd\"",
                      s.stable_steps, toml_text(s.name));
  if (s.decay_steps > 0 && s.name == "constant")
    fail<ConfigError>(place("scheduler.decay_steps"), "scheduler.decay_steps is {} but scheduler.name is \"constant\"; allowed: 0, or another "
                      "scheduler.name", s.decay_steps);
}

/// The stages of each rank, where the schedule is built in.
void check_chunks(Config& config, const ConfigPlaces& places, const std::string& name) {
  Config::Distributed& d = config.distributed;
  const std::string place = place_of(places, "distributed.pp_chunks", name);
  const bool given = places.contains("distributed.pp_chunks") || d.pp_chunks != Config::Distributed{}.pp_chunks;
  if (d.pp_schedule == "zb_v") {
    if (given && d.pp_chunks != 2)
      fail<ConfigError>(place, "distributed.pp_chunks is {} but distributed.pp_schedule is \"zb_v\", which has 2 stages on each rank, one on the way there and one on the way back; allowed: 2, or leave it out",
                        d.pp_chunks);
    d.pp_chunks = 2;
  } else if (d.pp_chunks > 1 && d.pp_schedule != "interleaved_1f1b") {
    fail<ConfigError>(place, "distributed.pp_chunks is {} but distributed.pp_schedule is {}; allowed: 1, or distributed.pp_schedule = \"interleaved_1f1b\"", d.pp_chunks,
                      toml_text(d.pp_schedule));
  }
}

/// Whether a user's own schedule fits the run. Returns its number of stages.
int64_t check_schedule_file(const Config& config, const ConfigPlaces& places, const std::string& name) {
  const Config::Distributed& d = config.distributed;
  const auto place = [&](const char* key) { return place_of(places, key, name); };
  const std::string where = place("distributed.pp_schedule"), file = std::filesystem::absolute(d.pp_schedule).lexically_normal().string();
  const PipelineSchedule schedule = read_schedule(file);
  if (d.pp_chunks > 1 && d.pp_chunks * schedule.ranks != schedule.stages)
    fail<ConfigError>(place("distributed.pp_chunks"), "distributed.pp_chunks is {} but {} has {} stages on {} ranks; allowed: leave it out, the file says where stages lie", d.pp_chunks, file,
                      schedule.stages, schedule.ranks);
  if (schedule.ranks != d.pp)
    fail<ConfigError>(places.contains("distributed.pp") ? place("distributed.pp") : where, "distributed.pp is {} but {} has {} ranks (lines); allowed: distributed.pp = {}, or another schedule", d.pp,
                      file, schedule.ranks, schedule.ranks);
  for (int64_t rank = 0; rank < schedule.ranks; ++rank)
    if (std::find(schedule.rank_of_stage.begin(), schedule.rank_of_stage.end(), rank) == schedule.rank_of_stage.end())
      fail<ConfigError>(where, "{}:{}: rank {} has no stage; allowed: one or more on each rank", file, rank + 1, rank);
  if (schedule.stages > config.model.n_layers)
    fail<ConfigError>(where, "more stages than layers: {} has {} stages but model.n_layers is {}; allowed: {} stages or fewer", file, schedule.stages, config.model.n_layers, config.model.n_layers);
  if (schedule.microbatches != config.microbatches_of_replica()) {
    const int64_t replicas = d.dp_replicate * d.dp_shard;
    fail<ConfigError>(where, "{} has {} microbatches but a step has {}{}; allowed: as many in both (train.global_batch_size = {} rows, train.microbatch_size = {})", file, schedule.microbatches,
                      config.microbatches_of_replica(), replicas > 1 ? fmt::format(" on each of {} replicas", replicas) : "", config.train.global_batch_size, config.train.microbatch_size);
  }
  return schedule.stages;
}

/// Layers on stages. Needs the resolved model and batch.
void check_pipeline(Config& config, const ConfigPlaces& places, const std::string& name, bool reads_files) {
  const Config::Distributed& d = config.distributed;
  const auto place = [&](const char* key) { return place_of(places, key, name); };
  const bool file = config.has_schedule_file();
  if (file && !reads_files) return;
  if (!file) check_chunks(config, places, name);
  const int64_t layers = config.model.n_layers, stages = file ? check_schedule_file(config, places, name) : d.pp * d.pp_chunks;
  if (stages > layers) {
    const std::string product = d.pp_chunks > 1 ? fmt::format("distributed.pp = {} x distributed.pp_chunks = {} makes {} stages", d.pp, d.pp_chunks, stages)
                                                : fmt::format("distributed.pp is {}", d.pp);
    fail<ConfigError>(place(d.pp > 1 ? "distributed.pp" : "distributed.pp_chunks"), "more stages than layers: {} but model.n_layers is {}; allowed: {} stages "
                      "or fewer", product, layers, layers);
  }
  if (d.pp_layers.empty()) return;
  const size_t shown = std::min<size_t>(d.pp_layers.size(), 32);
  const std::string given = fmt::format("distributed.pp_layers is [{}{}]", fmt::join(d.pp_layers.begin(), d.pp_layers.begin() + static_cast<ptrdiff_t>(shown), ", "),
                                        shown < d.pp_layers.size() ? ", ..." : "");
  const std::string where = place("distributed.pp_layers");
  if (static_cast<int64_t>(d.pp_layers.size()) != stages)
    fail<ConfigError>(where, "{}, {} stages, but {}; allowed: one number per stage, or none at all", given, d.pp_layers.size(),
                      file ? fmt::format("{} has {}", d.pp_schedule, stages) : fmt::format("distributed.pp = {} x distributed.pp_chunks = {} makes {}", d.pp, d.pp_chunks, stages));
  int64_t sum = 0;
  for (const int64_t count : d.pp_layers) sum += count;
  if (sum != layers)
    fail<ConfigError>(where, "{}, {} layers in all, but model.n_layers is {}; allowed: numbers that make {}, or none at all", given, sum, layers, layers);
  for (size_t stage = 1; stage + 1 < d.pp_layers.size(); ++stage)
    if (d.pp_layers[stage] == 0)
      fail<ConfigError>(where, "{}: stage {} holds no layer; allowed: 0 only for the first stage (it holds the embedding) and the last one (norm and head)",
                        given, stage);
}

/// Context parallelism. Needs the resolved model.
void check_context(Config& config, const ConfigPlaces& places, const std::string& name) {
  Config::Distributed& d = config.distributed;
  if (d.cp == 1) return;
  const auto place = [&](const char* key) { return place_of(places, key, name); };
  if (d.cp > config.train.seq_len)
    fail<ConfigError>(place("distributed.cp"), "distributed.cp is {}: more ranks than tokens in a row; allowed: at most train.seq_len = {}", d.cp, config.train.seq_len);
  if (d.cp_exchange != "heads") return;
  const bool given = places.contains("distributed.cp_layout") || d.cp_layout != Config::Distributed{}.cp_layout;
  if (d.cp_layout == "auto" || !given) d.cp_layout = "contiguous";
  if (d.cp_layout != "contiguous")
    fail<ConfigError>(place("distributed.cp_layout"), "distributed.cp_layout is {} but distributed.cp_exchange is \"heads\"; allowed: \"contiguous\", or another exchange",
                      toml_text(d.cp_layout));
  try {
    check_head_exchange(config.model.n_heads, config.model.n_kv_heads, d.cp);
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    fail<ConfigError>(place("distributed.cp_exchange"), "distributed.cp_exchange is \"heads\" with distributed.cp = {}: {}", d.cp, text.substr(text.find("] ") + 2));
  }
}

/// What a CUDA device does not do.
void refuse_on_cuda(const Config& config, const ConfigPlaces& places, const std::string& name) {
  if (config.run.device != "cuda") return;
  const std::string place = place_of(places, "run.device", name);
  if (config.train.mixed_precision == "f64")
    fail<ConfigError>(place, "run.device is \"cuda\" but train.mixed_precision is \"f64\"; allowed there: \"f32\" or \"bf16\", or run.device = \"cpu\"");
  if (config.model.attention_backend == "dense")
    fail<ConfigError>(place, "run.device is \"cuda\" but model.attention_backend is \"dense\", the CPU's reference; allowed there: \"block\", or run.device = \"cpu\"");
}

/// What cuDNN's attention needs, as far as a config says it; the device and the library are asked when a run starts.
void check_cudnn(const Config& config, const ConfigPlaces& places, const std::string& name) {
  if (config.model.attention_backend != "cudnn") return;
  const std::string place = place_of(places, "model.attention_backend", name);
  const auto refuse = [&](const std::string& found, std::string_view needed) {
    fail<ConfigError>(place, "model.attention_backend is \"cudnn\" but {}; allowed there: \"block\", or {}", found, needed);
  };
  if (config.run.device == "cpu") refuse("run.device is \"cpu\"", "run.device = \"cuda\"");
  if (config.train.mixed_precision != "bf16") refuse(fmt::format("train.mixed_precision is {}", toml_text(config.train.mixed_precision)), "train.mixed_precision = \"bf16\"");
  // Results over parts of the keys are added up; cuDNN rounds each to bf16.
  if (config.distributed.cp > 1) refuse(fmt::format("distributed.cp is {}: parts of a row are merged in f32, which cuDNN does not give", config.distributed.cp), "distributed.cp = 1");
}

void check_data(const Config& config, const ConfigPlaces& places, const std::string& name) {
  const Config::Data& data = config.data;
  const auto place = [&](const char* key) { return place_of(places, key, name); };
  if (data.eval_fraction > 0 && !data.eval_path.empty())
    fail<ConfigError>(place("data.eval_fraction"), "data.eval_fraction is {} and data.eval_path is {}; allowed: one of the two", data.eval_fraction,
                      toml_text(data.eval_path));
  if (data.pack_sequences && data.strategy == "concat" && data.overflow != "split")
    fail<ConfigError>(place("data.overflow"), "data.overflow is {} but data.strategy is \"concat\", which cuts documents at the ends of rows; allowed: "
                      "\"split\", or data.strategy = \"bfd\"", toml_text(data.overflow));
  if (data.eval_fraction == 0 && data.eval_path.empty() && (config.eval.interval > 0 || config.eval.steps > 0)) {
    const char* key = config.eval.interval > 0 ? "eval.interval" : "eval.steps";
    fail<ConfigError>(place(key), "{} is {} but no document is held out; allowed: 0, or data.eval_fraction or data.eval_path given", key,
                      config.eval.interval > 0 ? config.eval.interval : config.eval.steps);
  }
}

void resolve_model(Config& config, const ConfigPlaces& places, const std::string& name) {
  ModelConfig& model = config.model;
  if (model.max_seq_len < config.train.seq_len) {
    if (places.contains("model.max_seq_len") || (places.empty() && model.max_seq_len != ModelConfig{}.max_seq_len))
      fail<ConfigError>(place_of(places, "model.max_seq_len", name), "model.max_seq_len is {}; allowed: train.seq_len = {} or more", model.max_seq_len,
                        config.train.seq_len);
    model.max_seq_len = config.train.seq_len;
  }
  try {
    model = model.resolved();
  } catch (const ConfigError& error) {  // the model knows no file: say where the key that it names was set
    std::string text = error.what();
    const size_t end = text.find("] ");
    text = end == std::string::npos ? text : text.substr(end + 2);
    fail<ConfigError>(place_of(places, text.substr(0, text.find(' ')), name), "{}", text);
  }
}

}  // namespace

void check_key(const ConfigKey& key, Config& config, const ConfigPlaces& places, const std::string& name) {
  const ConfigSlot slot = key.slot(config);
  const std::string place = place_of(places, key.full_name(), name);
  if (!slot_in_range(key, slot)) fail<ConfigError>(place, "{} is {}; allowed: {}", key.full_name(), value_text(slot), key.allowed());
  if (const auto* text = std::get_if<std::string*>(&slot)) {
    if ((*text)->find('\0') != std::string::npos) fail<ConfigError>(place, "{} is {}; allowed: a text without zero bytes", key.full_name(), toml_text(**text));
    check_choice(key, **text, place);
  }
  if (!key.later.empty()) {
    Config defaults;
    if (const std::string only = value_text(key.slot(defaults)); value_text(slot) != only)
      fail<ConfigError>(place, "{} is {}: {}; allowed: {}", key.full_name(), value_text(slot), key.later, only);
  }
}

void resolve_config(Config& config, const ConfigPlaces& places, const std::string& name, bool reads_files) {
  if (config.distributed.dp_shard == -1) config.distributed.dp_shard = 1;  // all ranks that are left: none, as replicas are counted
  for (const ConfigKey& key : config_schema()) check_key(key, config, places, name);
  for (const std::string& kernel : config.run.kernels)
    if (const size_t at = kernel.find('='); at == std::string::npos || at == 0 || at + 1 == kernel.size())
      fail<ConfigError>(place_of(places, "run.kernels", name), "run.kernels holds {}; allowed: \"op=kernel\"", toml_text(kernel));
  resolve_batch(config, places, name);
  resolve_model(config, places, name);
  check_schedule(config, places, name);
  check_pipeline(config, places, name, reads_files);
  check_context(config, places, name);
  check_cudnn(config, places, name);
  refuse_on_cuda(config, places, name);
  check_data(config, places, name);
  for (const ConfigKey& key : config_schema()) {
    const ConfigSlot slot = key.slot(config);
    auto* const* text = std::get_if<std::string*>(&slot);
    if (text == nullptr || !key.names_file(**text)) continue;
    std::string& path = **text;
    if (!path.empty()) path = std::filesystem::absolute(path).lexically_normal().string();
  }
}

MeshShape mesh_shape(const Config& config) {
  const Config::Distributed& d = config.distributed;
  return {.pp = d.pp, .dp = d.dp_replicate * d.dp_shard, .cp = d.cp, .tp = d.tp};
}

Config resolved(Config config) {
  resolve_config(config, {}, "config");
  return config;
}

}  // namespace quire
