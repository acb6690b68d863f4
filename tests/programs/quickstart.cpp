// The quickstart's own run on Debian's fortunes: what the model learns beside gzip, and what its samples look like. The default tier trains 600 of
// the 1,000 steps, the full tier all of them; both must reach the same marks.
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "programs/fixture.h"

using namespace quire;
using namespace quire::test;

namespace {

const std::string fortunes = "/usr/share/games/fortunes";

/// Lower-case words of four letters or more.
std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  std::string word;
  for (const char c : text + " ") {
    if (std::isalpha(static_cast<unsigned char>(c)) != 0) {
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      continue;
    }
    if (word.size() >= 4) words.push_back(word);
    word.clear();
  }
  return words;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(quickstart)

BOOST_AUTO_TEST_CASE(beats_gzip_and_writes_documents_that_end_in_words_that_exist) {
  if (!std::filesystem::exists(fortunes)) {
    BOOST_TEST_MESSAGE("skipped: the packages fortunes and fortunes-min are not installed");
    return;
  }
  Scratch scratch;
  ProgramOptions patient;
  patient.patience_seconds = 3000;
  run_well({tool("prepare"), fortunes, "--separator", "%", "--exclude", "*.dat", "--exclude", "*.u8", "--dedup", "--bos", "--out", scratch.path("corpus")});
  const char* tier = std::getenv("QUIRE_TEST_TIER");
  std::vector<std::string> training{tool("train"), std::string(QUIRE_SOURCE_ROOT) + "/tools/configs/fortunes.toml", "data.dataset_path=" + scratch.path("corpus"),
                                    "run.dir=" + scratch.path("run")};
  const bool whole = tier != nullptr && std::string(tier) == "all";
  if (!whole) training.push_back("train.max_steps=600");
  run_well(training, patient);

  std::vector<std::string> documents{tool("documents"), training[1], training[2]};
  const std::string train_text = run_well(documents, patient).out;
  documents.push_back("--held-out");
  const std::string held_out = run_well(documents, patient).out;
  store(scratch.path("held-out.txt"), held_out);
  const double zipped = 8.0 * static_cast<double>(run_well({"/usr/bin/env", "gzip", "-9", "-c", scratch.path("held-out.txt")}).out.size());
  const double gzip_bits = zipped / static_cast<double>(held_out.size());
  const double model_bits = read_metrics(disk(), scratch.path("run/metrics.jsonl")).back().eval_bits_per_byte.value();
  BOOST_TEST_MESSAGE("gzip -9 " << gzip_bits << ", model " << model_bits << " bits per byte");
  BOOST_TEST(model_bits <= 0.85 * gzip_bits, model_bits << " of " << gzip_bits);

  const std::vector<std::string> train_words = words_of(train_text);
  const std::set<std::string> known(train_words.begin(), train_words.end());
  std::istringstream samples(run_well({tool("generate"), scratch.path("run"), "--samples", "100", "--tokens", "601", "--temperature", "0.8", "--seed", "1", "--jsonl"}, patient).out);
  int count = 0, ended = 0, words = 0, right = 0;
  for (std::string line; std::getline(samples, line); ++count) {
    const nlohmann::json sample = nlohmann::json::parse(line);
    const std::string text = sample.at("text").get<std::string>();
    ended += sample.at("end") == "end_token" && text.size() <= 600;
    for (const std::string& word : words_of(text)) {
      ++words;
      right += known.contains(word);
    }
  }
  BOOST_TEST_MESSAGE(ended << " of " << count << " samples end, " << right << " of " << words << " words are known");
  BOOST_TEST(count == 100);
  // After 600 of its 1,000 steps 81 of 100 end on average (244 of 300), give or take 4 by how numbers are rounded.
  BOOST_TEST(ended >= (whole ? 80 : 68));
  BOOST_TEST(2 * right >= words);
  BOOST_TEST(words > 500);
}

BOOST_AUTO_TEST_SUITE_END()
