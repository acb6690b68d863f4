// Random rows of random documents through the real loader and trainer, cut over context ranks in random layouts, alone and with stages and replicas: in f64 loss, norm, every
// gradient and the evaluation are those of one process. Rows of any length (odd, prime, shorter than the ranks' number), documents of one token, longer than a shard or a row,
// shards without a token. The full tier draws 3,000 trainings, the default one 60.
#include "layout_product.h"
#include "run/context_breaks.h"

using namespace quire;
using namespace quire::test;

namespace {

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}
  int64_t from(std::initializer_list<int64_t> values) { return values.begin()[random_() % values.size()]; }
  std::string from(std::initializer_list<const char*> values) { return values.begin()[random_() % values.size()]; }
  int64_t below(int64_t bound) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(bound)); }

 private:
  std::mt19937_64 random_;
};

std::shared_ptr<MemoryCorpus> random_corpus(Draw& draw, int64_t row) {
  CorpusInfo info;
  info.vocabulary_size = product_eos + 1;
  info.eos = product_eos;
  auto corpus = std::make_shared<MemoryCorpus>(info);
  const std::string kind = draw.from({"short", "mixed", "one token", "long", "rows"});
  for (int64_t left = 8 * row; left > 0;) {
    const int64_t length = kind == "one token" ? 1 : kind == "short" ? 1 + draw.below(4) : kind == "long" ? row / 2 + 1 + draw.below(2 * row) : kind == "rows" ? row + draw.below(2) - (row > 1 ? 1 : 0)
                                                                                                                                                   : 1 + draw.below(draw.from({1, 3, row}));
    std::vector<int32_t> tokens(static_cast<size_t>(std::max<int64_t>(length, 1)), product_eos);
    for (size_t i = 0; i + 1 < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(draw.below(product_eos));
    corpus->add(tokens);
    left -= static_cast<int64_t>(tokens.size());
  }
  return corpus;
}

Config random_config(Draw& draw) {
  Config config = product_config();
  config.train.mixed_precision = "f64";
  config.model.n_heads = 24;
  config.model.head_dim = 4;
  config.train.seq_len = draw.from({8, 11, 13, 16, 29, 31, 47, 61, 97});
  config.train.global_batch_size = draw.from({1, 2, 4});
  config.train.microbatch_size = config.train.global_batch_size == 4 ? draw.from({1, 2, 4}) : 1;
  config.model.attention_backend = draw.from({"block", "dense"});
  config.train.activation_checkpointing = draw.from({"none", "attention", "full"});
  config.data.strategy = draw.from({"concat", "bfd"});
  const int64_t window = draw.from({0, 0, 1, 5, 40});
  if (window > 0) config.model.sliding_window = {window};
  Config::Distributed& d = config.distributed;
  d.cp = draw.from({2, 3, 4, 8});
  d.pp = draw.from({1, 1, 2});
  d.dp_replicate = draw.from({1, 1, 2});
  d.cp_exchange = draw.from({"ring", "gather", "heads"});
  d.cp_layout = d.cp_exchange == "heads" ? "contiguous" : draw.from({"balanced", "contiguous", "zigzag"});
  config.model.n_kv_heads = d.cp_exchange == "heads" ? draw.from({int64_t{1}, d.cp, int64_t{24}}) : draw.from({1, 2, 3, 24});
  return resolved(config);
}

std::string text_of(const Config& config, uint64_t seed) {
  const Config::Distributed& d = config.distributed;
  return fmt::format("seed {}: cp {} {} {}, pp {}, dp {}, rows of {}, {} of {} a microbatch, {} backend, {} key/value heads", seed, d.cp, d.cp_layout, d.cp_exchange, d.pp, d.dp_replicate,
                     config.train.seq_len, config.train.microbatch_size, config.train.global_batch_size, config.model.attention_backend, config.model.n_kv_heads);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(context_rows)

BOOST_AUTO_TEST_CASE(random_rows_over_context_ranks_train_as_one_process) {
  const uint64_t count = all_tier() ? 3000 : 60;
  for (uint64_t seed = 1; seed <= count; ++seed) {
    Draw draw(seed);
    const Config config = random_config(draw);
    const auto corpus = random_corpus(draw, config.train.seq_len);
    const LayoutRun one = run_layout(in_one_process(config), corpus, {.steps = 1}), many = run_layout(config, corpus, {.steps = 1});
    BOOST_TEST(many.disagreements.empty(), text_of(config, seed));
    const double off = largest_difference(many, one, 1e-3);  // with a window of 1 the gradients of queries and keys are mere rounding
    BOOST_TEST(off <= 1e-11, text_of(config, seed) << ": " << off);
    BOOST_TEST(std::abs(many.evaluation - one.evaluation) <= 1e-11 * std::abs(one.evaluation), text_of(config, seed));
    BOOST_TEST(many.steps.at(0).valid_tokens == one.steps.at(0).valid_tokens);
    BOOST_TEST(many.steps.at(0).useful_pairs == one.steps.at(0).useful_pairs);
  }
}

// Control: rows taken for one document each are far from packed ones, so the comparison sees whom a token attends to. (Only where a document that stands behind another one is scored.)
BOOST_AUTO_TEST_CASE(rows_without_boundaries_are_seen) {
  int compared = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    Draw draw(seed);
    const Config config = random_config(draw);
    const auto corpus = random_corpus(draw, config.train.seq_len);
    const LayoutRun one = run_layout(in_one_process(config), corpus, {.steps = 1, .evaluate = false});
    LayoutRunOptions unpacked{.steps = 1, .evaluate = false};
    std::atomic<int> scored = 0;
    unpacked.step = [&](Trainer& trainer, const LoadedStep& batch) {
      for (const HostBatch& host : batch.microbatches)
        for (const Row& row : host.plan)
          for (size_t piece = 1; piece < row.size(); ++piece) scored += row[piece].valid > 0;
      return trainer.step(without_boundaries(batch));
    };
    const LayoutRun many = run_layout(config, corpus, unpacked);
    const std::vector<int64_t>& windows = config.model.sliding_window;
    if (scored == 0 || (!windows.empty() && windows.front() == 1)) continue;  // tokens never meet
    BOOST_TEST(largest_difference(many, one) > 1e-6, text_of(config, seed));
    ++compared;
  }
  BOOST_TEST(compared > 10);
}

BOOST_AUTO_TEST_SUITE_END()
