// FAULTS.md 1, 2, 4 and 5 under pipelines: boundaries reach every stage, whatever happens to a record is refused by all ranks, and training goes on.
#include <atomic>
#include <cstring>
#include <set>

#include "layout_case.h"
#include "parallel/boundary_record.h"
#include "run/layout_breaks.h"

using namespace quire;
using namespace quire::test;

namespace {

using Words = std::vector<int32_t>;

/// Changes a word of 8 bytes of a record's header: 0 magic, 1 step, 2 stage, 3 microbatch, 4 tokens, 5 digest.
std::function<void(Words&)> header_word(size_t word, int64_t added) {
  return [=](Words& words) {
    int64_t value = 0;
    std::memcpy(&value, words.data() + 2 * word, sizeof value);
    value += added;
    std::memcpy(words.data() + 2 * word, &value, sizeof value);
  };
}

std::span<int32_t> starts_of(Words& words) { return std::span(words).subspan(boundary_header_words); }

/// A record for these starts whose digest is right: nothing but the plan tells that it is wrong.
void put_documents(Words& words, const Documents& documents) {
  if (documents.tokens() != static_cast<int64_t>(starts_of(words).size())) throw std::logic_error("the microbatches of this test have one size");
  std::copy(documents.starts().begin(), documents.starts().end(), starts_of(words).begin());
  const uint64_t digest = documents.digest();
  std::memcpy(words.data() + 10, &digest, sizeof digest);
}

/// One thing that may happen to a record on its way. `batch`: all microbatches of the step.
struct Damage {
  std::string name;
  std::function<void(Words&, const std::vector<HostBatch>& batch, int64_t microbatch)> change;
};

std::vector<Damage> damages() {
  std::vector<Damage> all;
  const auto add = [&](const char* name, std::function<void(Words&)> change) {
    all.push_back({name, [change = std::move(change)](Words& words, const std::vector<HostBatch>&, int64_t) { change(words); }});
  };
  add("magic", header_word(0, 1));
  add("another step", header_word(1, 1));
  add("another stage", header_word(2, -1));
  add("another microbatch", header_word(3, 1));
  add("more tokens", header_word(4, 1));
  add("fewer tokens", header_word(4, -1));
  add("another digest", header_word(5, 1));
  add("nothing but zeros", [](Words& words) { std::fill(words.begin(), words.end(), 0); });
  add("noise", [](Words& words) {
    std::mt19937_64 random(1);
    for (int32_t& word : words) word = static_cast<int32_t>(random());
  });
  add("starts that can not be", [](Words& words) { starts_of(words)[0] = 3; });
  add("negative starts", [](Words& words) { starts_of(words).back() = -1; });
  add("boundaries dropped", [](Words& words) {
    const auto tokens = static_cast<int64_t>(starts_of(words).size());
    put_documents(words, Documents::from_lengths(std::span(&tokens, 1)));
  });
  add("boundaries dropped, digest kept", [](Words& words) { std::fill(starts_of(words).begin(), starts_of(words).end(), 0); });
  add("every token alone", [](Words& words) { put_documents(words, Documents::from_lengths(std::vector<int64_t>(starts_of(words).size(), 1))); });
  all.push_back({"the record of a neighbour in flight, renumbered", [](Words& words, const std::vector<HostBatch>& batch, int64_t microbatch) {
                   put_documents(words, batch[static_cast<size_t>(microbatch ^ 1)].documents);
                 }});
  all.push_back({"the first microbatch's record", [](Words& words, const std::vector<HostBatch>& batch, int64_t) { put_documents(words, batch.front().documents); }});
  all.push_back({"starts counted from the global batch's first token", [](Words& words, const std::vector<HostBatch>& batch, int64_t microbatch) {
                   int64_t before = 0;
                   for (int64_t m = 0; m < microbatch; ++m) before += batch[static_cast<size_t>(m)].documents.tokens();
                   for (int32_t& start : starts_of(words)) start += static_cast<int32_t>(before);
                 }});
  return all;
}

/// What every rank saw of a run whose first step is damaged.
struct Seen {
  std::mutex mutex;
  std::vector<std::string> errors;  ///< of each rank
  bool changed = false;             ///< a weight, by the refused step
};

/// Three steps, of which the first is tried with `tamper` in force (and `damaged` set), and then again without.
LayoutRun refused_and_repeated(const Config& config, const std::shared_ptr<const Corpus>& corpus, Seen& seen, std::atomic<bool>& damaged, LayoutRunOptions options,
                               const std::function<std::unique_ptr<BoundaryTamper>(Trainer&, const LoadedStep&)>& tamper = {}) {
  options.step = [&](Trainer& trainer, const LoadedStep& batch) {
    if (trainer.steps_done() != 0) return trainer.step(batch);
    trainer.groups().world->barrier();
    if (trainer.groups().world->rank() == 0) damaged = true;
    trainer.groups().world->barrier();
    const auto before = masters_of(trainer);
    std::string error = "none";
    {
      const std::unique_ptr<BoundaryTamper> broken = tamper ? tamper(trainer, batch) : nullptr;
      trainer.pipeline().set_tamper(broken.get());
      try {
        trainer.step(batch);
      } catch (const BoundaryError& refused) {
        error = refused.what();
      }
      trainer.pipeline().set_tamper(nullptr);
    }
    {
      const std::lock_guard lock(seen.mutex);
      seen.errors.push_back(error);
      seen.changed = seen.changed || masters_of(trainer) != before;
    }
    trainer.groups().world->barrier();
    if (trainer.groups().world->rank() == 0) damaged = false;
    trainer.groups().world->barrier();
    return trainer.step(batch);
  };
  return run_layout(config, corpus, options);
}

void check_seen(const Seen& seen, int64_t ranks, int64_t rank, int64_t stage, int64_t microbatch, const std::string& what) {
  BOOST_TEST(seen.errors.size() == static_cast<size_t>(ranks), what);
  for (const std::string& error : seen.errors)
    for (const std::string& part : {fmt::format("rank {} ", rank), fmt::format("stage {},", stage), fmt::format("microbatch {},", microbatch), std::string("step 1 "),
                                    std::string("no weight was changed")})
      BOOST_TEST(error.find(part) != std::string::npos, what << ": '" << error << "' lacks '" << part << "'");
  BOOST_TEST(!seen.changed, what << ": a weight was changed");
}

/// Everything that records hold, by (step, stage, microbatch).
struct Records {
  std::mutex mutex;
  std::map<std::tuple<int64_t, int64_t, int64_t>, BoundaryRecord> all;
  std::map<MessageKind, int64_t> messages;
  bool integers = true;  ///< boundaries travel as i32, activations and gradients do not

  LayoutRunOptions options(int steps) {
    LayoutRunOptions result;
    result.steps = steps;
    result.evaluate = false;
    result.wire = [this](Rank&, int) {
      WireHooks hooks;
      hooks.change = [this](const Tensor& message, int, const MessageLabel& label) {
        const std::lock_guard lock(mutex);
        ++messages[label.kind];
        if (label.kind == MessageKind::boundaries) all.emplace(std::tuple(label.step, label.stage, label.microbatch), read_boundary_record(message, message.elements() - boundary_header_words));
        const bool floating = label.kind == MessageKind::activations || label.kind == MessageKind::activation_gradients;
        if (floating || label.kind == MessageKind::boundaries) integers = integers && (message.dtype() == DType::i32) == !floating;
        return message;
      };
      return hooks;
    };
    return result;
  }
};

const std::vector<std::pair<int64_t, std::string>> record_layouts = {{2, "1f1b"}, {3, "gpipe"}, {4, "1f1b"}, {2, "interleaved_1f1b 3"}, {3, "interleaved_1f1b 2"}, {2, "zb_h1"}, {3, "zb_v"}, {2, "file"}};

/// Stages that get their input as a message; a stage after another one of its rank gets none.
int64_t receivers(const PipelineStages& stages) {
  int64_t count = 0;
  for (int64_t stage = 0; stage < stages.stages(); ++stage) count += stages.receives(stage);
  return count;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(fault_01_02_04_05)

BOOST_AUTO_TEST_CASE(entry_1_a_pipeline_is_the_packed_model_and_not_the_unpacked_one) {
  const auto corpus = layout_corpus();
  LayoutRunOptions unpacked;
  unpacked.step = [](Trainer& trainer, const LoadedStep& batch) { return trainer.step(without_boundaries(batch)); };
  const LayoutRun one = run_layout(fault_layout(1), corpus), plain = run_layout(fault_layout(1), corpus, unpacked);
  for (const auto& [pp, schedule] : record_layouts) {
    const LayoutRun pipeline = run_layout(fault_layout(pp, schedule), corpus);
    BOOST_TEST(bit_difference(pipeline, one) == "", schedule << ", pp " << pp);
    BOOST_TEST(largest_difference(pipeline, plain) > 0.05);  // bits above; a pipeline that drops boundaries would be the other
    BOOST_TEST(bit_difference(run_layout(fault_layout(pp, schedule), corpus, unpacked), plain) == "");
  }
  BOOST_TEST(largest_difference(one, plain) > 0.05);
}

BOOST_AUTO_TEST_CASE(entry_2_4_every_stage_gets_the_loaders_boundaries_rebased_for_each_microbatch) {
  const auto corpus = layout_corpus();
  for (const char* packing : {"concat", "bfd"})
    for (const int64_t rows : {1, 2})
      for (const auto& [pp, schedule] : record_layouts) {
        Config config = fault_layout(pp, schedule);
        set_parameter(config, "packing", packing);
        config.train.microbatch_size = rows;
        Records records;
        run_layout(config, corpus, records.options(2));
        const std::vector<LoadedStep> steps = loaded_steps(config, corpus, 2);
        const int64_t received = receivers(pipeline_stages(config)), microbatches = 6 / rows;
        BOOST_TEST(received == (schedule == "zb_v" || schedule == "file" ? 2 * pp - 2 : pp * config.distributed.pp_chunks - 1));
        BOOST_TEST(records.all.size() == static_cast<size_t>(2 * received * microbatches), schedule << ", pp " << pp);
        for (const auto& [where, record] : records.all) {
          const auto [step, stage, microbatch] = where;
          const HostBatch& host = steps.at(static_cast<size_t>(step - 1)).microbatches.at(static_cast<size_t>(microbatch));
          BOOST_TEST((record.header == BoundaryHeader{step, stage, microbatch}));
          BOOST_TEST((record.documents == host.documents));
          BOOST_TEST(record.digest == host.documents.digest());
          // Rebased: the pieces of this microbatch's rows one after the other from 0, whatever stands before them in the global batch.
          std::vector<int64_t> lengths;
          for (const Row& row : host.plan)
            for (const Piece& piece : row) lengths.push_back(piece.length);
          BOOST_TEST((record.documents == Documents::from_lengths(lengths)));
        }
      }
}

BOOST_AUTO_TEST_CASE(entry_2_4_7_a_damaged_record_is_refused_by_every_rank_and_the_step_can_be_repeated) {
  const auto corpus = layout_corpus();
  struct Case {
    int64_t pp, dp;
    std::string schedule;
    int64_t rows;
    std::vector<int64_t> stages;
  };
  // First, middle and last receiving stage; chunks; replicas; microbatches longer than any document may be.
  for (const Case& c : {Case{4, 1, "1f1b", 1, {1, 2, 3}}, {2, 1, "interleaved_1f1b 2", 1, {2}}, {2, 2, "gpipe", 1, {1}}, {2, 1, "1f1b", 3, {1}}, {2, 1, "zb_v", 1, {1, 3}}}) {
    Config config = fault_layout(c.pp, c.schedule, c.dp);
    config.train.microbatch_size = c.rows;
    if (c.rows > 1) config.model.max_seq_len = config.train.seq_len;
    config = resolved(config);
    const LayoutRun whole = run_layout(config, corpus);
    const std::vector<HostBatch> batch = loaded_steps(config, corpus, 1)[0].microbatches;
    const auto tampered = static_cast<int64_t>(batch.size()) - 1;  // of the last replica, in flight with the one before
    for (const Damage& damage : damages())
      for (const int64_t stage : c.stages) {
        Seen seen;
        std::atomic<bool> damaged = false;
        LayoutRunOptions options;
        options.wire = [&](Rank& rank, int) {
          WireHooks hooks;
          hooks.change = [&](const Tensor& message, int, const MessageLabel& label) {
            if (!damaged || label.kind != MessageKind::boundaries || label.stage != stage || label.microbatch != tampered) return message;
            Words words = message.to_vector<int32_t>();
            damage.change(words, batch, tampered);
            return Tensor::from<int32_t>(rank, message.shape(), words);
          };
          return hooks;
        };
        const LayoutRun run = refused_and_repeated(config, corpus, seen, damaged, options);
        const std::string what = fmt::format("{}, pp {} {}, stage {}", damage.name, c.pp, c.schedule, stage);
        const int64_t receiver = pipeline_stages(config).rank_of_stage[static_cast<size_t>(stage)] * c.dp + (c.dp - 1);
        check_seen(seen, c.pp * c.dp, receiver, stage, tampered, what);
        BOOST_TEST(bit_difference(run, whole) == "", what << ": after the step was repeated");
      }
  }
}

BOOST_AUTO_TEST_CASE(entry_2_7_a_stage_that_drops_or_swaps_boundaries_is_refused_by_every_rank) {
  const auto corpus = layout_corpus();
  for (const auto& [pp, schedule] : record_layouts) {
    Config config = fault_layout(pp, schedule);
    const LayoutRun whole = run_layout(config, corpus);
    const PipelineStages stages = pipeline_stages(config);
    const std::vector<std::string> names = pipeline_breaks(stages);
    BOOST_TEST(names.size() >= static_cast<size_t>(receivers(stages) + 1));  // `dropped`, one for each receiving stage (or all but one), `swapped`
    for (const std::string& name : names) {
      if (name == "dropped") continue;  // attention's own fault, not a record's
      Seen seen;
      std::atomic<bool> damaged = false;
      const LayoutRun run = refused_and_repeated(config, corpus, seen, damaged, {}, [&](Trainer& trainer, const LoadedStep& batch) {
        return make_tamper(trainer.rank(), name, batch.microbatches);
      });
      const int64_t stage = name == "swapped" ? 1 : std::stoll(name.substr(name.find_first_of("0123456789")));
      check_seen(seen, pp, stages.rank_of_stage[static_cast<size_t>(stage)], stage, 0, name + ", " + schedule);
      BOOST_TEST(bit_difference(run, whole) == "", name << ": after the step was repeated");
    }
  }
}

BOOST_AUTO_TEST_CASE(entry_2_an_evaluation_over_other_boundaries_is_refused_by_every_rank) {
  const auto corpus = layout_corpus();
  const Config config = fault_layout(3);
  std::mutex mutex;
  std::vector<std::string> errors;
  std::atomic<int> evaluations = 0;
  run_local(3, {}, [&](Communicator& world) {
    Rank rank(rank_options(config));
    WireHooks hooks;
    hooks.change = [&](const Tensor& message, int, const MessageLabel& label) {
      if (label.kind != MessageKind::boundaries || label.stage != 2 || label.microbatch != 3 || label.step != 2) return message;
      Words words = message.to_vector<int32_t>();
      put_documents(words, Documents::from_lengths(std::vector<int64_t>(starts_of(words).size(), 1)));
      return Tensor::from<int32_t>(rank, message.shape(), words);
    };
    Wire wire(world, hooks);
    Trainer trainer(rank, config, &wire);
    try {
      trainer.evaluate(corpus);
    } catch (const BoundaryError& error) {
      const std::lock_guard lock(mutex);
      errors.push_back(error.what());
    }
    trainer.evaluate(corpus, 1);  // nothing of it is left behind, and the first batch is right
    ++evaluations;
  });
  BOOST_TEST(errors.size() == 3u);
  for (const std::string& error : errors)
    for (const char* part : {"rank 2 ", "stage 2,", "microbatch 3,", "evaluation"}) BOOST_TEST(error.find(part) != std::string::npos, error);
  BOOST_TEST(evaluations == 3);
}

BOOST_AUTO_TEST_CASE(entry_2_a_record_of_another_length_ends_every_rank) {
  const Config config = fault_layout(3);
  const auto corpus = layout_corpus();
  LayoutRunOptions options;
  options.wire = [](Rank& rank, int) {
    WireHooks hooks;
    hooks.change = [&rank](const Tensor& message, int, const MessageLabel& label) {
      if (label.kind != MessageKind::boundaries || label.stage != 2 || label.step != 2) return message;
      Words words = message.to_vector<int32_t>();
      words.pop_back();
      return Tensor::from<int32_t>(rank, {static_cast<int64_t>(words.size())}, words);
    };
    return hooks;
  };
  check_error<CommunicationError>([&] { run_layout(config, corpus, options); }, {"rank 2 expects boundaries for stage 2, microbatch 0, step 2 of 180 bytes", "176 bytes"});
}

BOOST_AUTO_TEST_CASE(entry_5_records_travel_as_integers_without_gradient_and_every_schedule_trains) {
  const auto corpus = layout_corpus();
  const LayoutRun one = run_layout(fault_layout(1), corpus, {.steps = 2, .evaluate = false});
  for (const auto& [pp, schedule] : record_layouts)
    for (const bool split : {false, true}) {
      const Config config = fault_layout(pp, schedule);
      Records records;
      std::map<std::string, std::vector<double>> before;
      LayoutRunOptions options = records.options(2);
      std::mutex mutex;
      options.prepare = [&](Trainer& trainer) {
        if (split) split_backward_of(trainer);
        const std::lock_guard lock(mutex);
        for (const Parameter& p : trainer.model().parameters()) before[p.name] = as_doubles(p.master);
      };
      const LayoutRun run = run_layout(config, corpus, options);
      BOOST_TEST(bit_difference(run, one) == "", schedule << ", pp " << pp);
      for (const auto& [name, weights] : run.weights) BOOST_TEST((before.at(name) != weights), name << " did not train");
      const int64_t messages = 2 * 6 * receivers(pipeline_stages(config));
      BOOST_TEST(records.integers);
      BOOST_TEST(records.messages[MessageKind::boundaries] == messages);
      BOOST_TEST(records.messages[MessageKind::activations] == messages);
      BOOST_TEST(records.messages[MessageKind::activation_gradients] == messages);
    }
}

BOOST_AUTO_TEST_SUITE_END()
