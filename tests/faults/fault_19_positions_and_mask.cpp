// FAULTS.md 19, 20 and 27: the mask follows from boundaries alone; positions restart by themselves; neither stands in for the other.
#include <algorithm>

#include "model/decoder_case.h"

using namespace quire;
using namespace quire::test;

namespace {

const std::vector<int64_t> documents_of_case = {7, 1, 30, 64, 1, 9};

struct Case {
  Rank rank{RankOptions{.threads = 2, .poison = true}};
  Model model;
  Batch batch;
  explicit Case(const char* backend = "block", DType dtype = DType::f64) : model(rank, config(backend), dtype) {
    std::mt19937_64 random(1);
    model.initialize(rank, 1);
    batch = random_batch(random, documents_of_case, model.config().vocab_size);
  }
  static ModelConfig config(const char* backend) {
    ModelConfig c = small_config();
    c.attention_backend = backend;
    return c;
  }
  Microbatch with_positions(const Batch& of, const std::vector<int32_t>& positions) {
    Microbatch microbatch = of.on(rank);
    microbatch.positions = Tensor::from<int32_t>(rank, {of.size()}, positions);
    return microbatch;
  }
  /// Rows changed by another token 0 of document 3, with these positions: (inside the document, elsewhere).
  std::pair<int64_t, int64_t> probe(const std::vector<int32_t>& positions, const ForwardOptions& options = {}) {
    const int64_t begin = batch.begin_of(3), end = begin + batch.lengths[3], vocabulary = model.config().vocab_size;
    const std::vector<bool> changed = changed_rows(logits_of(rank, model, with_positions(batch, positions), options),
                                                   logits_of(rank, model, with_positions(batch.with_token_changed(begin, vocabulary), positions), options), vocabulary);
    std::pair<int64_t, int64_t> count;
    for (int64_t i = 0; i < batch.size(); ++i) (i >= begin && i < end ? count.first : count.second) += changed[static_cast<size_t>(i)];
    return count;
  }
  std::vector<int32_t> restarting() const { return batch.documents().positions(); }
  std::vector<int32_t> continuing() const {
    std::vector<int32_t> positions(static_cast<size_t>(batch.size()));
    std::iota(positions.begin(), positions.end(), 0);
    return positions;
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(fault_19)

BOOST_AUTO_TEST_CASE(the_mask_is_a_matter_of_boundaries_whatever_the_positions_19_27) {
  for (const char* backend : {"block", "dense"}) {
    Case c(backend, DType::f32);
    std::vector<int32_t> shifted = c.restarting(), zeros(shifted.size(), 0), noise = shifted, backwards = shifted;
    std::mt19937_64 random(2);
    for (int32_t& p : shifted) p += 17;  // documents that do not begin at position 0
    for (int32_t& p : noise) p = static_cast<int32_t>(random() % 500);
    std::reverse(backwards.begin(), backwards.end());
    for (const std::vector<int32_t>& positions : {c.restarting(), c.continuing(), shifted, zeros, noise, backwards})
      BOOST_TEST((c.probe(positions) == std::pair<int64_t, int64_t>(64, 0)));
  }
}

BOOST_AUTO_TEST_CASE(restarting_positions_without_mask_leak_20) {
  Case c;
  BrokenAttention unmasked(Documents::from_lengths(std::vector<int64_t>{c.batch.size()}));
  ForwardOptions options;
  options.attention = &unmasked;
  BOOST_TEST(c.probe(c.restarting(), options).second == 10);  // all ten tokens behind the document
}

BOOST_AUTO_TEST_CASE(positions_are_used_as_they_are_given_19) {
  // Positions enter relatively, so a shift of a whole document changes rounding only; any other change is seen clearly.
  Case c;
  const Doubles right = logits_of(c.rank, c.model, c.batch.on(c.rank));
  const auto difference = [&](const std::vector<int32_t>& positions) {
    const Doubles found = logits_of(c.rank, c.model, c.with_positions(c.batch, positions));
    return std::pair(found != right, relative_difference(found, right));
  };
  BOOST_TEST((difference(c.restarting()) == std::pair(false, 0.0)));
  const auto [continued_differs, continued] = difference(c.continuing());  // masked, but not restarted: other bits
  BOOST_TEST(continued_differs);
  BOOST_TEST(continued < 1e-11);
  std::vector<int32_t> stretched = c.restarting();
  for (int32_t& p : stretched) p *= 2;
  BOOST_TEST(difference(stretched).second > 1e-3);
  BOOST_TEST(difference(std::vector<int32_t>(stretched.size(), 0)).second > 1e-3);
  std::vector<int32_t> one_off = c.restarting();
  one_off[50] += 1;
  BOOST_TEST(difference(one_off).second > 1e-6);
}

BOOST_AUTO_TEST_CASE(only_restarted_positions_give_the_bits_of_the_document_alone_20) {
  Case c("block", DType::f32);
  const int64_t vocabulary = c.model.config().vocab_size, begin = c.batch.begin_of(3), end = begin + c.batch.lengths[3];
  const Doubles alone = logits_of(c.rank, c.model, c.batch.alone(3).on(c.rank));
  BOOST_TEST((rows_of(logits_of(c.rank, c.model, c.batch.on(c.rank)), vocabulary, begin, end) == alone));
  BOOST_TEST((rows_of(logits_of(c.rank, c.model, c.with_positions(c.batch, c.continuing())), vocabulary, begin, end) != alone));
}

BOOST_AUTO_TEST_CASE(microbatches_derive_positions_from_boundaries_27) {
  Case c;
  BOOST_TEST((c.batch.on(c.rank).positions.to_vector<int32_t>() == c.restarting()));
  // The middle of a document on another rank: positions do not begin at 0, and no boundary is made of that.
  const Documents shard = Documents::shard({5, 6, 7, 8, 20, 21}, {2, 2, 2, 8, 8, 8});
  BOOST_TEST((shard.positions() == std::vector<int32_t>{3, 4, 5, 0, 12, 13}));
  BOOST_TEST(shard.runs().size() == 3u);
}

BOOST_AUTO_TEST_SUITE_END()
