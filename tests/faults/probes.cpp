// The two probes of FAULTS.md on the decoder, for every backend and dtype; each with the control that drops the boundaries.
#include "model/decoder_case.h"

using namespace quire;
using namespace quire::test;

namespace {

const std::vector<int64_t> lengths = {5, 1, 66, 1, 1, 30, 64, 2};

}  // namespace

BOOST_AUTO_TEST_SUITE(probes)

BOOST_AUTO_TEST_CASE(no_token_reaches_another_document) {
  std::mt19937_64 random(1);
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const char* backend : {"block", "dense"})
      for (const int64_t window : {0, 10}) {
        ModelConfig config = small_config();
        config.attention_backend = backend;
        config.qk_norm = window > 0;
        config.sliding_window = {window};
        Rank rank(RankOptions{.threads = 2, .poison = true});
        Model model(rank, config, dtype);
        model.initialize(rank, 1);
        const Batch batch = random_batch(random, lengths, config.vocab_size);
        for (const auto& [document, offset] : {std::pair<size_t, int64_t>{0, 0}, {1, 0}, {2, 0}, {2, 65}, {4, 0}, {6, 31}, {7, 1}}) {
          const Leak leak = leak_probe(rank, model, batch, document, offset);
          BOOST_TEST(leak.leaked == 0);
          BOOST_TEST(leak.changed >= 1);
          if (window == 0 && dtype != DType::bf16) BOOST_TEST(leak.unchanged == 0);
        }
        // The control: one document for all tokens.
        BrokenAttention dropped(Documents::from_lengths(std::vector<int64_t>{batch.size()}));
        ForwardOptions options;
        options.attention = &dropped;
        BOOST_TEST(leak_probe(rank, model, batch, 2, 60, options).leaked > 0);
      }
}

BOOST_AUTO_TEST_CASE(half_of_the_rows_of_two_equal_documents_change) {
  for (const char* backend : {"block", "dense"}) {
    ModelConfig config = small_config();
    config.attention_backend = backend;
    Rank rank(RankOptions{.threads = 2});
    Model model(rank, config, DType::f32);
    model.initialize(rank, 1);
    std::mt19937_64 random(2);
    const Batch one = random_batch(random, {64}, config.vocab_size);
    Batch two{{64, 64}, one.tokens, one.targets};
    two.tokens.insert(two.tokens.end(), one.tokens.begin(), one.tokens.end());
    two.targets.insert(two.targets.end(), one.targets.begin(), one.targets.end());
    const Leak leak = leak_probe(rank, model, two, 0, 0);
    BOOST_TEST(leak.changed == 64);  // 50.0 %
    BOOST_TEST(leak.leaked == 0);
    BrokenAttention dropped(Documents::from_lengths(std::vector<int64_t>{128}));
    ForwardOptions options;
    options.attention = &dropped;
    BOOST_TEST(leak_probe(rank, model, two, 0, 0, options).changed == 128);  // 100.0 %
  }
}

BOOST_AUTO_TEST_CASE(the_loss_of_a_document_sends_no_gradient_to_another) {
  std::mt19937_64 random(3);
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const char* backend : {"block", "dense"})
      for (const Recomputation recomputation : {Recomputation::none, Recomputation::full}) {
        ModelConfig config = small_config();
        config.attention_backend = backend;
        config.sliding_window = {0, 40};
        Rank rank(RankOptions{.threads = 2, .poison = true});
        Model model(rank, config, dtype);
        model.initialize(rank, 1);
        const Batch batch = random_batch(random, lengths, config.vocab_size);
        ForwardOptions options, broken;
        options.recomputation = broken.recomputation = recomputation;
        BrokenAttention dropped(Documents::from_lengths(std::vector<int64_t>{batch.size()}));
        broken.attention = &dropped;
        for (const size_t document : {0, 2, 5, 7}) {
          const Microbatch microbatch = batch.scoring(document).on(rank);
          const int64_t begin = batch.begin_of(document), end = begin + batch.lengths[document];
          const auto outside = [&](const Doubles& gradient) {
            int64_t nonzero = 0;
            for (int64_t i = 0; i < batch.size(); ++i)
              for (int64_t d = 0; d < config.dim; ++d) nonzero += (i < begin || i >= end) && gradient[static_cast<size_t>(i * config.dim + d)] != 0;
            return nonzero;
          };
          const Doubles gradient = embedding_gradient(rank, model, microbatch, options);
          BOOST_TEST(outside(gradient) == 0);
          double inside = 0;
          for (const double g : rows_of(gradient, config.dim, begin, end)) inside += std::abs(g);
          BOOST_TEST(inside > 0);
          if (document > 0) BOOST_TEST(outside(embedding_gradient(rank, model, microbatch, broken)) > 0);  // the control
        }
      }
}

BOOST_AUTO_TEST_CASE(replacing_a_document_leaves_the_gradients_of_the_others_to_the_bit) {
  std::mt19937_64 random(4);
  for (const char* backend : {"block", "dense"}) {
    ModelConfig config = small_config();
    config.attention_backend = backend;
    Rank rank(RankOptions{.threads = 2, .poison = true});
    Model model(rank, config, DType::f32);
    model.initialize(rank, 1);
    const Batch batch = random_batch(random, lengths, config.vocab_size);
    Batch replaced = batch;
    const int64_t begin = batch.begin_of(2), end = begin + batch.lengths[2];
    for (int64_t i = begin; i < end; ++i) replaced.tokens[static_cast<size_t>(i)] = static_cast<int32_t>(random() % 23);
    const auto compare = [&](const ForwardOptions& options) {
      const std::vector<bool> changed =
          changed_rows(embedding_gradient(rank, model, batch.on(rank), options), embedding_gradient(rank, model, replaced.on(rank), options), config.dim);
      int64_t outside = 0, inside = 0;
      for (int64_t i = 0; i < batch.size(); ++i) (i < begin || i >= end ? outside : inside) += changed[static_cast<size_t>(i)];
      return std::pair(outside, inside);
    };
    BOOST_TEST(compare({}).first == 0);
    BOOST_TEST(compare({}).second > 0);
    BrokenAttention dropped(Documents::from_lengths(std::vector<int64_t>{batch.size()}));
    ForwardOptions broken;
    broken.attention = &dropped;
    BOOST_TEST(compare(broken).first > 0);
  }
}

BOOST_AUTO_TEST_SUITE_END()
