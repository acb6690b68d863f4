// FAULTS.md entries 35 and 42 through whole sessions of several ranks: batches without a target, and epochs.
#include "data/shard.h"
#include "run/training_run.h"

using namespace quire;
using namespace quire::test;

BOOST_AUTO_TEST_SUITE(fault_35_42_ranks)

BOOST_AUTO_TEST_CASE(entry_35_batches_and_microbatches_without_a_target_are_steps_like_others_and_change_nothing) {
  Scratch scratch;
  // Documents 0 to 11 are ignored, those after them not; rows of one document each, in order.
  {
    ShardWriter writer(scratch.path("corpus"), {"", 100, 99, std::nullopt, 1 << 20});
    std::mt19937_64 random(4);
    for (int d = 0; d < 30; ++d) {
      std::vector<int32_t> tokens(3 + random() % 9);
      for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 99);
      tokens.back() = 99;
      writer.add(tokens, std::vector<uint8_t>(tokens.size(), static_cast<uint8_t>(d >= 12 && d % 4 != 1)));
    }
    writer.finish();
  }
  const std::vector<std::string> kind{"data.dataset_path=" + scratch.path("corpus"), "data.separator=", "data.pack_sequences=false", "data.shuffle=false", "data.eval_fraction=0", "eval.interval=0",
                                      "train.microbatch_size=1", "train.mixed_precision=f64", "data.epochs=1", "train.max_steps=100", "checkpoint.interval=1", "checkpoint.keep_last_n=0"};
  const Config one = ranks_config(scratch, "one", 1, 1, kind);
  run_training(one);
  const auto alone = metrics_of(one);
  BOOST_REQUIRE_EQUAL(alone.size(), 8u);
  for (size_t i = 0; i < alone.size(); ++i) {
    BOOST_TEST(alone[i].skipped == (i < 3));
    BOOST_TEST(alone[i].loss == (i < 3 ? 0.0 : alone[i].loss));
    BOOST_TEST(std::isfinite(alone[i].grad_norm));
    BOOST_TEST(alone[i].non_finite == "");
  }
  for (const auto& [pp, dp] : std::vector<std::pair<int64_t, int64_t>>{{2, 1}, {1, 4}, {2, 4}, {2, 5}}) {
    const Config config = ranks_config(scratch, fmt::format("pp-{}-dp-{}", pp, dp), pp, dp, kind);
    run_training_ranks(config);
    const auto ours = metrics_of(config);
    BOOST_REQUIRE_EQUAL(ours.size(), alone.size());
    for (size_t i = 0; i < alone.size(); ++i) {
      if (dp == 1 || i < 3) BOOST_TEST((ours[i] == alone[i]), config.run.dir << " step " << i + 1);
      BOOST_TEST(std::abs(ours[i].loss - alone[i].loss) <= 1e-11 * alone[i].loss);
      BOOST_TEST(ours[i].valid_tokens == alone[i].valid_tokens);
    }
    const auto saved = [&](int64_t step) { return tensors_of(disk(), checkpoint_folder(config.run.dir, step)); };
    BOOST_TEST((saved(1) == saved(3)));  // nothing was scored: no weight and no moment moved
    BOOST_TEST((saved(3) != saved(4)));
  }
}

BOOST_AUTO_TEST_CASE(entry_42_an_epoch_shows_every_document_once_in_every_layout_and_every_stage_the_same) {
  using Pieces = std::multiset<std::array<int64_t, 3>>;
  for (const char* strategy : {"bfd", "concat"})
    for (const auto& [pp, dp] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {2, 1}, {1, 3}, {2, 2}}) {
      Scratch scratch;
      const Config config = ranks_config(scratch, "run", pp, dp, {"train.microbatch_size=1", "data.epochs=1", "train.max_steps=100", "data.eval_fraction=0", "eval.interval=0",
                                                                 std::string("data.strategy=") + strategy});
      std::vector<Pieces> seen(static_cast<size_t>(pp * dp));
      std::vector<std::array<int64_t, 2>> places(seen.size());
      run_local(static_cast<int>(pp * dp), {}, [&](Communicator& world) {
        Session session(config, disk(), quiet(), &world);
        const auto rank = static_cast<size_t>(world.rank());
        places[rank] = {session.trainer().groups().place.pp, session.trainer().groups().place.dp};
        for (LoadedStep batch = session.next_batch(); !batch.empty(); batch = session.next_batch()) {
          for (const HostBatch& microbatch : batch.microbatches)
            for (const Row& row : microbatch.plan)
              for (const Piece& piece : row) seen[rank].insert({piece.document, piece.offset, piece.length});
          session.record(batch, session.trainer().step(batch));
        }
        session.finish(0);
      });
      const std::shared_ptr<const Corpus> corpus = open_data(config).train;
      Pieces all;
      for (size_t r = 0; r < seen.size(); ++r) {
        if (places[r][0] == 0) all.insert(seen[r].begin(), seen[r].end());
        for (size_t other = 0; other < r; ++other)
          if (places[other][1] == places[r][1]) BOOST_TEST((seen[other] == seen[r]));
      }
      std::map<int64_t, int64_t> tokens;  // of each document, pieces one after the other
      for (const auto& [document, offset, length] : all) {
        BOOST_TEST(offset == tokens[document]);
        tokens[document] += length;
      }
      BOOST_TEST(static_cast<int64_t>(tokens.size()) == corpus->document_count());
      for (const auto& [document, count] : tokens) BOOST_TEST(std::abs(count - corpus->document(document).length) <= 1, document << ": " << count);
    }
}

BOOST_AUTO_TEST_SUITE_END()
