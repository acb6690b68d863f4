#include "run/training_state.h"

#include <nlohmann/json.hpp>

#include "parallel/checkpoint.h"
#include "run/config_schema.h"
#include "run/model_source.h"

namespace quire {

namespace {

using nlohmann::json;

/// Calls body(kind, parameter, tensor) for everything that a checkpoint holds.
template <class Body>
void for_tensors(Trainer& trainer, Body&& body) {
  ParameterSet& parameters = trainer.model().parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = parameters[i];
    body("parameter", p, p.value);
    if (!p.master.shares_storage(p.value)) body("master", p, p.master);
    body("moment1", p, trainer.optimizer().moment1(i));
    body("moment2", p, trainer.optimizer().moment2(i));
  }
}

json parse_state(const CheckpointReader& reader) {
  json state = json::parse(reader.state(), nullptr, false);
  if (!state.is_object() || state.value("format", 0) != 1)
    fail<DataError>("checkpoint", "{}: its state is of no format known here; allowed: format 1", reader.folder());
  return state;
}

std::string state_text(Trainer& trainer, const PackingState& packing, const Corpus& corpus) {
  json state;
  state["format"] = 1;
  state["step"] = trainer.steps_done();
  state["config"] = to_toml(trainer.config());
  state["tokenizer"] = corpus.info().tokenizer;
  state["bos"] = corpus.bos() ? json(*corpus.bos()) : json(nullptr);
  state["eos"] = corpus.eos();
  state["vocabulary_size"] = corpus.vocabulary_size();
  state["adam_step"] = trainer.optimizer().adam_step();
  state["skipped_in_a_row"] = trainer.skipped_in_a_row();
  state["packing"] = json::parse(packing.to_json());
  return state.dump(1);
}

/// One part of a save on every rank. Where it fails on any of them, the failing ones throw their error, and the others AbortedError.
template <class Part>
void in_step(Communicator& world, int64_t step, Part&& part) {
  std::exception_ptr error;
  try {
    part();
  } catch (...) {
    error = std::current_exception();
  }
  int64_t failed = 0;
  try {
    failed = world.agree_on_largest(error ? 1 : 0, {MessageKind::control, step, -1, -1, "checkpoint"});
  } catch (...) {
    if (!error) throw;  // else what went wrong here says more than that others are gone
  }
  if (error) std::rethrow_exception(error);
  if (failed != 0) fail<AbortedError>("checkpoint", "another rank could not save step {}", step);
}

}  // namespace

void save_training_state(FileSystem& fs, const std::string& run_folder, Trainer& trainer, const PackingState& packing, const Corpus& corpus, int64_t keep_last_n) {
  const Groups& groups = trainer.groups();
  const int64_t step = trainer.steps_done();
  std::vector<CheckpointTensor> tensors;
  for_tensors(trainer, [&](const char* kind, const Parameter& p, const Tensor& tensor) {
    if (p.counted) tensors.push_back({p.name, kind, p.shape, std::vector<int64_t>(static_cast<size_t>(p.shape.dims()), 0), tensor});
  });
  Communicator& world = *groups.world;
  const bool first = world.rank() == 0, writes = groups.replicas->rank() == 0;  // all replicas hold the same
  try {
    in_step(world, step, [&] { if (first) begin_checkpoint(fs, run_folder, step); });
    in_step(world, step, [&] { if (writes) write_checkpoint_part(fs, run_folder, step, groups.place.pp, tensors); });
    in_step(world, step, [&] {
      if (first) publish_checkpoint(fs, run_folder, step, groups.mesh.shape().pp, state_text(trainer, packing, corpus), keep_last_n);
    });
  } catch (...) {
    if (first) abandon_checkpoint(fs, run_folder, step);
    throw;
  }
}

namespace {

/// What rank 0 finds, on every rank: it alone reads every byte.
CheckpointSearch find_checkpoint(FileSystem& fs, const std::string& run_folder, Communicator& world) {
  if (world.size() == 1) return latest_checkpoint(fs, run_folder);
  json text;
  if (world.rank() == 0) {
    const CheckpointSearch found = latest_checkpoint(fs, run_folder);
    text = {{"folder", found.folder}, {"step", found.step}, {"damaged", found.damaged}};
  }
  const json shared = json::parse(world.gather_texts(text.dump()).at(0));
  return {shared["folder"], shared["step"], shared["damaged"]};
}

}  // namespace

std::optional<LoadedState> load_training_state(FileSystem& fs, const std::string& run_folder, const std::string& load_path, Rank& rank, Trainer& trainer) {
  LoadedState result;
  const CheckpointSearch own = find_checkpoint(fs, run_folder, *trainer.groups().world);
  result.damaged = own.damaged;
  if (!own.found()) {
    if (!result.damaged.empty()) {  // training anew would throw away the record of a run that may still be saved
      std::string reasons;
      for (const std::string& damage : result.damaged) reasons += (reasons.empty() ? "" : "; ") + damage;
      fail<DataError>("checkpoint", "{} holds checkpoints, but none that can be used: {}; repair one, remove them to train anew, or give another run.dir", run_folder, reasons);
    }
    if (load_path.empty()) return std::nullopt;
    open_model_source(fs, load_path)->load(rank, trainer.model());
    return result;
  }
  CheckpointReader reader(fs, own.folder, CheckpointCheck::sizes);
  const json state = parse_state(reader);
  // The checkpoint itself knows what it was trained with, whatever became of the folder's config.toml.
  if (const json config = state.value("config", json()); config.is_string())
    check_resumable(parse_stored_config(config.get<std::string>(), own.folder + "/state.json"), trainer.config());
  for_tensors(trainer, [&](const char* kind, const Parameter& p, const Tensor& tensor) { reader.read(kind, p.name, tensor); });
  trainer.set_steps_done(reader.step());
  try {
    trainer.optimizer().set_adam_step(state.at("adam_step").get<int64_t>());
    trainer.set_skipped_in_a_row(state.at("skipped_in_a_row").get<int64_t>());
    result.packing = PackingState::from_json(state.at("packing").dump());
  } catch (const json::exception& error) {
    fail<DataError>("checkpoint", "{}: state.json: {}", own.folder, error.what());
  }
  result.same_run = true;
  return result;
}

}  // namespace quire
