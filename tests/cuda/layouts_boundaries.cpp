// What may go wrong between emulated devices, and layouts with little to do: boundaries that are not the plan's are refused by every rank a step late, no step reads anything on the
// host, ranks without work, documents of one token and odd lengths train as the CPU's.
#include <atomic>
#include <chrono>
#include <thread>

#include "cuda/layouts.h"
#include "faults/layout_case.h"
#include "ops/boundary_table.h"
#include "parallel/boundary_record.h"
#include "runtime/accelerator.h"

namespace quire::test {

namespace {

/// Two layers of 16, or as many as stages, rows of 29 tokens with documents of one token and longer than a row, four rows a step, each a microbatch.
Config small_layout(const std::string& device, int64_t pp, int64_t cp, int64_t dp, const std::string& context = "zigzag ring") {
  Config config = product_config();
  config.model.n_layers = std::max<int64_t>(2, pp);
  config.train.global_batch_size = 4;
  config.train.microbatch_size = 1;
  config.train.mixed_precision = "f32";
  config.run.device = device;
  set_layout_parameter(config, "context", context);
  config.distributed.pp = pp;
  config.distributed.cp = cp;
  config.distributed.dp_replicate = dp;
  return resolved(config);
}

/// A step on which every rank is to be told that the boundaries of one message were others: what they say, and whether a weight changed.
struct Refused {
  std::mutex mutex;
  std::vector<std::string> errors;
  bool changed = false;
};

/// Changes one 4-byte word of every record for this stage and microbatch, of a message of one kind, while `damaged`.
LayoutRunOptions damaging(Refused& seen, std::atomic<bool>& damaged, const char* purpose, int64_t stage, int64_t microbatch, size_t word, int32_t added) {
  LayoutRunOptions options;
  options.steps = 2;
  options.evaluate = false;
  options.wire = [&damaged, purpose, stage, microbatch, word, added](Rank& rank, int) {
    WireHooks hooks;
    hooks.change = [&damaged, &rank, purpose, stage, microbatch, word, added](const Tensor& message, int, const MessageLabel& label) {
      if (!damaged || label.kind != MessageKind::boundaries || std::string_view(label.purpose) != purpose || label.stage != stage || label.microbatch != microbatch) return message;
      std::vector<int32_t> words = message.to_vector<int32_t>();
      words.at(word % words.size()) += added;
      return Tensor::from<int32_t>(rank, message.shape(), words, Category::data);
    };
    return hooks;
  };
  options.step = [&seen, &damaged](Trainer& trainer, const LoadedStep& batch) {
    if (trainer.steps_done() != 0) return trainer.step(batch);
    Communicator& world = *trainer.groups().world;
    const auto all_see = [&](bool value) {
      world.barrier();
      if (world.rank() == 0) damaged = value;
      world.barrier();
    };
    const auto before = masters_of(trainer);
    all_see(true);
    trainer.begin_step();
    trainer.forward_backward(batch);
    trainer.submit();  // nothing is known yet
    all_see(false);
    trainer.begin_step();
    trainer.forward_backward(batch);  // a step that is right, on a rank that was told wrong: not used either
    trainer.submit();
    std::string error = "none";
    try {
      trainer.collect();
    } catch (const BoundaryError& refused) {
      error = refused.what();
    }
    {
      const std::lock_guard lock(seen.mutex);
      seen.errors.push_back(error);
      seen.changed = seen.changed || masters_of(trainer) != before || trainer.submitted() != 0 || trainer.steps_done() != 0;
    }
    return trainer.step(batch);
  };
  return options;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cuda_layouts_boundaries)

BOOST_AUTO_TEST_CASE(other_boundaries_with_activations_are_refused_by_every_rank_and_the_step_can_be_repeated) {
  const emulation::Fresh fresh;
  const auto corpus = layout_corpus();
  for (const int64_t cp : {1, 2}) {
    const Config config = small_layout("cuda", 2, cp, 1);
    LayoutRunOptions plain;
    plain.steps = 2;
    plain.evaluate = false;
    const LayoutRun whole = run_layout(config, corpus, plain);
    // Words: the header's step 2 and digest 10, a start that another document could have, one that can not be.
    for (const auto& [word, added] : std::vector<std::pair<size_t, int32_t>>{{2, 1}, {10, 1}, {boundary_header_words + 1, 1}, {boundary_header_words + 3, 1 << 30}}) {
      if (!all_tier() && word != (cp == 2 ? boundary_header_words + 1 : boundary_header_words + 3)) continue;
      Refused seen;
      std::atomic<bool> damaged = false;
      const LayoutRun run = run_layout(config, corpus, damaging(seen, damaged, "", 1, 3, word, added));
      BOOST_TEST(seen.errors.size() == static_cast<size_t>(2 * cp));
      for (const std::string& error : seen.errors)
        for (const char* part : {"rank ", "stage 1,", "microbatch 3,", "step 1 ", "no weight was changed"}) BOOST_TEST(error.find(part) != std::string::npos, "word " << word << ": " << error);
      BOOST_TEST(!seen.changed);
      BOOST_TEST(bit_difference(run, whole) == "", "word " << word << ", cp " << cp);
    }
  }
}

// That the step is refused hides what it computed with: here what a stage is about to work on is looked at.
BOOST_AUTO_TEST_CASE(a_stage_works_with_the_boundaries_that_came) {
  const emulation::Fresh fresh;
  const auto corpus = layout_corpus();
  const auto other_start = [](int32_t start) { return start == 0 ? 1 : 0; };  // of the last token, whose document another could be
  for (const int64_t cp : {1, 2}) {
    LayoutRunOptions options;
    options.steps = 1;
    options.evaluate = options.gradients = false;
    options.wire = [&](Rank& rank, int) {
      WireHooks hooks;
      hooks.change = [&rank, other_start](const Tensor& message, int, const MessageLabel& label) {
        if (label.kind != MessageKind::boundaries || label.stage != 1) return message;
        std::vector<int32_t> words = message.to_vector<int32_t>();
        words.back() = other_start(words.back());
        return Tensor::from<int32_t>(rank, message.shape(), words, Category::data);
      };
      return hooks;
    };
    std::mutex mutex;
    int looked = 0, mismatches = 0;
    options.step = [&](Trainer& trainer, const LoadedStep& batch) {
      Rank& rank = trainer.rank();
      PipelineWork work;
      work.microbatches = batch.microbatches;
      work.begun = [&](int64_t stage, int64_t, const Microbatch& microbatch) {
        if (stage != 1) return;
        const auto tokens = static_cast<size_t>(microbatch.size());
        std::vector<int32_t> due(microbatch.documents.starts().begin(), microbatch.documents.starts().end()), start(tokens), positions;
        due.back() = other_start(due.back());
        for (size_t i = 0; i < tokens; ++i) positions.push_back(microbatch.documents.indices()[i] - due[i]);
        rank.accelerator()->download(microbatch.runs->table(rank, microbatch.size()).start, start.data(), microbatch.size() * 4);
        const auto* const context = dynamic_cast<const ContextWork*>(microbatch.work.get());
        const std::lock_guard lock(mutex);
        BOOST_TEST((start == due));
        BOOST_TEST((microbatch.positions.to_vector<int32_t>() == positions));
        BOOST_TEST((cp == 1 || (context != nullptr && context->own_runs == microbatch.runs)));
        ++looked;
      };
      work.hidden = [](int64_t, const Tensor&, const Microbatch&) {};
      trainer.pipeline().forward(work);
      const bool seen = trainer.pipeline().take_mismatch().has_value();
      const std::lock_guard lock(mutex);
      mismatches += seen;
      return StepResult{};
    };
    run_layout(small_layout("cuda", 2, cp, 1), corpus, options);
    BOOST_TEST(looked == 4 * cp);
    BOOST_TEST(mismatches >= 1);
  }
}

BOOST_AUTO_TEST_CASE(other_boundaries_with_keys_are_refused_by_every_rank) {
  const emulation::Fresh fresh;
  const auto corpus = layout_corpus();
  for (const char* context : {"contiguous ring", "contiguous heads"}) {
    const Config config = small_layout("cuda", 1, 2, 1, context);
    const char* purpose = std::string_view(context).ends_with("heads") ? "tokens for their heads" : "keys and values";
    // The microbatch whose first keys travel: one with a document across the cut.
    ContextPlanner planner(2, context_sharing(config).options);
    int64_t microbatch = -1;
    const std::vector<LoadedStep> loaded = loaded_steps(config, corpus, 1);
    for (const HostBatch& host : loaded[0].microbatches)
      if (microbatch < 0 && (planner.plan(host.documents)->exchange == ContextExchange::heads || !planner.plan(host.documents)->exchanges.at(0).steps.empty())) microbatch = host.index;
    BOOST_REQUIRE(microbatch >= 0);
    Refused seen;
    std::atomic<bool> damaged = false;
    run_layout(config, corpus, damaging(seen, damaged, purpose, 0, microbatch, boundary_header_words, 1));
    BOOST_TEST(seen.errors.size() == 2u);
    for (const std::string& error : seen.errors)
      for (const std::string& part : {std::string("[context]"), std::string("layer 0,"), fmt::format("microbatch {},", microbatch), std::string("step 1 "), std::string("no weight was changed")})
        BOOST_TEST(error.find(part) != std::string::npos, context << ": " << error);
    BOOST_TEST(!seen.changed);
  }
}

BOOST_AUTO_TEST_CASE(an_evaluation_over_other_boundaries_is_refused_and_nothing_is_left_behind) {
  const emulation::Fresh fresh;
  const auto corpus = layout_corpus();
  const Config config = small_layout("cuda", 2, 1, 1);
  Refused seen;
  std::atomic<bool> damaged = false;
  LayoutRunOptions options = damaging(seen, damaged, "", 1, 0, boundary_header_words + 1, 1);
  options.steps = 1;
  options.step = [&](Trainer& trainer, const LoadedStep& batch) {
    Communicator& world = *trainer.groups().world;
    for (const bool value : {true, false}) {
      world.barrier();
      if (world.rank() == 0) damaged = value;
      world.barrier();
      std::string error = "none";
      try {
        trainer.evaluate(corpus, 1);
      } catch (const BoundaryError& refused) {
        error = refused.what();
      }
      const std::lock_guard lock(seen.mutex);
      seen.changed = seen.changed || (error != "none") != value;
    }
    return trainer.step(batch);
  };
  const LayoutRun run = run_layout(config, corpus, options);
  BOOST_TEST(!seen.changed);
  BOOST_TEST(!run.steps.at(0).skipped);
}

// What an ended message leaves in memory would read as boundaries that differ.
BOOST_AUTO_TEST_CASE(ranks_that_are_ended_within_a_step_say_why) {
  const emulation::Fresh fresh;
  std::atomic<bool> submitted = false;
  std::string said = "nothing";
  LayoutRunOptions options;
  options.steps = 1;
  options.step = [&](Trainer& trainer, const LoadedStep& batch) {
    Communicator& world = *trainer.groups().world;
    trainer.begin_step();
    trainer.forward_backward(batch);
    if (world.rank() == 1) {
      while (!submitted) {
        world.poll();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      world.abort("enough");
      world.poll();
    }
    trainer.submit();
    submitted = true;
    try {
      return trainer.collect();
    } catch (const Error& error) {
      said = error.what();
      throw;
    }
  };
  check_error<AbortedError>([&] { run_layout(small_layout("cuda", 1, 1, 2), layout_corpus(), options); }, {"enough"});
  BOOST_TEST(said.find("enough") != std::string::npos, said);
}

BOOST_AUTO_TEST_CASE(no_rank_reads_anything_on_the_host_inside_a_step) {
  const emulation::Fresh fresh;
  const auto corpus = layout_corpus();
  for (const bool reads : {false, true}) {  // the second time with a read put into the step: the control
    for (const auto& [pp, cp, dp] : {std::tuple<int64_t, int64_t, int64_t>{2, 2, 1}, {1, 1, 2}}) {
      if (reads && cp == 2) continue;
      std::mutex mutex;
      int64_t host_reads = 0, ranks = 0;
      emulation::Counters counted;
      LayoutRunOptions options;
      options.steps = 2;
      options.gradients = options.evaluate = false;
      options.step = [&](Trainer& trainer, const LoadedStep& batch) {
        const Accelerator& device = *trainer.rank().accelerator();
        Communicator& world = *trainer.groups().world;
        world.barrier();
        if (world.rank() == 0) emulation::reset_counters();
        world.barrier();
        const int64_t before = device.host_reads();
        trainer.begin_step();
        trainer.forward_backward(batch);
        if (reads) trainer.model().parameters()[0].gradients[0].to_vector<float>();
        trainer.submit();
        world.barrier();
        if (trainer.steps_done() > 1) {  // the first step chooses kernels and makes staging
          const std::lock_guard lock(mutex);
          host_reads += device.host_reads() - before;
          ++ranks;
          counted = emulation::counters();
        }
        world.barrier();
        return trainer.collect();
      };
      run_layout(small_layout("cuda", pp, cp, dp), corpus, options);
      BOOST_TEST(ranks == pp * cp * dp);
      BOOST_TEST(host_reads == (reads ? ranks : 0));
      if (!reads) {
        BOOST_TEST(counted.device_synchronizations == 0);
        BOOST_TEST(counted.stream_synchronizations == 0);
        BOOST_TEST(counted.synchronous_copies == 0);
      }
      BOOST_TEST(counted.kernels > 50);
    }
  }
}

BOOST_AUTO_TEST_CASE(ranks_without_work_documents_of_one_token_and_odd_lengths_train_as_the_cpus) {
  const emulation::Fresh fresh;
  const auto corpus = layout_corpus();
  LayoutRunOptions options;
  options.steps = 1;
  options.evaluate = false;
  const auto run = [&](const char* device, const char* dtype, int64_t pp, int64_t cp, int64_t dp, int64_t rows) {
    Config config = small_layout(device, pp, cp, dp, "balanced ring");
    config.model.n_layers = 4;
    config.model.sliding_window.clear();
    config.train.mixed_precision = dtype;
    config.train.microbatch_size = rows;
    return run_layout(resolved(config), corpus, options);
  };
  // One microbatch of four rows for four stages, or for two replicas of two context ranks; rows of 29 tokens for four ranks.
  for (const auto& [pp, cp, dp, rows] : {std::tuple<int64_t, int64_t, int64_t, int64_t>{4, 1, 1, 4}, {1, 2, 2, 4}, {1, 4, 1, 1}}) {
    const LayoutRun exact = run("cpu", "f64", 1, 1, 1, rows), cpu = run("cpu", "f32", pp, cp, dp, rows), device = run("cuda", "f32", pp, cp, dp, rows);
    const LayoutRun alone = run("cpu", "f32", 1, 1, 1, rows);
    const std::string beyond = beyond_rule(device.gradients.at(0), cpu.gradients.at(0), alone.gradients.at(0), exact.gradients.at(0), 4);
    BOOST_TEST(beyond == "", fmt::format("pp {}, cp {}, dp {}: {}", pp, cp, dp, beyond));
    BOOST_TEST(std::abs(device.steps.at(0).loss - cpu.steps.at(0).loss) <= 1e-5 * cpu.steps.at(0).loss);
    BOOST_TEST((device.steps[0].valid_tokens == cpu.steps[0].valid_tokens && device.steps[0].useful_pairs == cpu.steps[0].useful_pairs));
    BOOST_TEST(device.disagreements.empty());
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace quire::test
