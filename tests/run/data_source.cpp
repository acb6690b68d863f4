// The documents that a config names: raw token files get their boundaries from the vectorised kernel, and they are the plain loop's.
#include "run/data_source.h"

#include <fstream>

#include "run/training_run.h"

using namespace quire;
using namespace quire::test;

BOOST_AUTO_TEST_SUITE(data_source)

BOOST_AUTO_TEST_CASE(boundaries_of_raw_files_by_the_kernel_and_by_a_plain_loop) {
  Scratch scratch;
  std::mt19937_64 random(11);
  for (int round = 0; round < 20; ++round) {
    // One file longer than the chunk that is read at once (2^20 ids), with EOS runs and documents across the chunks' edge.
    std::vector<uint16_t> ids(round == 0 ? (1 << 20) + 4321 : 1 + random() % 3000);
    for (uint16_t& id : ids) id = random() % (2 + static_cast<uint64_t>(round)) == 0 ? 99 : static_cast<uint16_t>(random() % 99);
    ids.back() = 99;
    const std::string path = scratch.path(fmt::format("tokens-{}.bin", round));
    std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(ids.data()), static_cast<std::streamsize>(ids.size() * 2));
    const Config config = small_config(scratch, "run", {"data.dataset_path=" + path, "data.tokens_dtype=u16", "data.eos_id=99", "data.eval_fraction=0", "data.separator=", "eval.interval=0"});
    const std::shared_ptr<const Corpus> corpus = open_data(config).train;
    std::vector<int64_t> lengths{0};
    for (uint16_t id : ids) {
      ++lengths.back();
      if (id == 99) lengths.push_back(0);
    }
    lengths.pop_back();
    BOOST_REQUIRE_EQUAL(corpus->document_count(), static_cast<int64_t>(lengths.size()));
    for (size_t d = 0; d < lengths.size(); ++d) BOOST_REQUIRE_EQUAL(corpus->length(static_cast<int64_t>(d)), lengths[d]);
  }
}

BOOST_AUTO_TEST_CASE(a_vocabulary_larger_than_the_model_is_refused) {
  Scratch scratch;
  check_error<ConfigError>([&] { open_data(small_config(scratch, "run", {"model.vocab_size=100"})); }, {"model.vocab_size", "257"});
}

BOOST_AUTO_TEST_SUITE_END()
