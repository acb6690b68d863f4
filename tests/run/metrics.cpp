// metrics.jsonl: what is written reads back as the same bits.
#include "run/metrics.h"

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "check.h"
#include "run/scratch.h"

using namespace quire;
using quire::test::check_error;
using quire::test::Scratch;

namespace {

double random_double(std::mt19937_64& random) {
  while (true)
    if (const double value = std::bit_cast<double>(random()); std::isfinite(value)) return value;
}

StepMetrics random_metrics(std::mt19937_64& random) {
  StepMetrics m;
  for (int64_t* integer : {&m.step, &m.epoch, &m.valid_tokens, &m.tokens, &m.useful_pairs, &m.computed_pairs, &m.padding})
    *integer = static_cast<int64_t>(random() >> (random() % 63 + 1));
  for (double* number : {&m.loss, &m.grad_norm, &m.lr, &m.step_ms, &m.tokens_per_s}) *number = random_double(random);
  m.skipped = random() % 2 == 0;
  if (random() % 2 == 0) m.non_finite = "gradient of \"layers.3\"\n\\ \xc3\xa9";
  for (std::optional<double>* number : {&m.eval_loss, &m.eval_bits_per_byte, &m.peak_share_useful, &m.peak_share_causal})
    if (random() % 2 == 0) *number = random_double(random);
  m.resident_bytes = static_cast<int64_t>(random() % 2);
  return m;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(metrics)

BOOST_AUTO_TEST_CASE(every_double_reads_back_as_the_same_bits) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 3000; ++round) {
    const StepMetrics m = random_metrics(random);
    const std::string line = to_json(m);
    BOOST_REQUIRE(line.find('\n') == std::string::npos);
    BOOST_REQUIRE((metrics_from_json(line) == m));
    BOOST_REQUIRE_EQUAL(to_json(metrics_from_json(line)), line);
  }
  StepMetrics m;
  for (const double value : {-0.0, 5e-324, 1.7976931348623157e308, 0.1, 1e22, 1e15, 123456789012345680.0}) {
    m.loss = value;
    BOOST_TEST(std::bit_cast<uint64_t>(metrics_from_json(to_json(m)).loss) == std::bit_cast<uint64_t>(value), value);
  }
}

BOOST_AUTO_TEST_CASE(a_long_list_of_names_is_cut) {
  for (const char* whole : {"", "loss", "a, b, c"}) BOOST_TEST(few_names(whole) == whole);
  BOOST_TEST(few_names("a, b, c, d") == "a, b, c and 1 more");
  BOOST_TEST(few_names("layers.0, layers.1, layers.2, layers.3, layers.4") == "layers.0, layers.1, layers.2 and 2 more");
}

BOOST_AUTO_TEST_CASE(non_finite_numbers_are_null_and_read_as_nan) {
  StepMetrics m;
  m.loss = std::numeric_limits<double>::quiet_NaN();
  m.grad_norm = std::numeric_limits<double>::infinity();
  const std::string line = to_json(m);
  BOOST_TEST(line.find("\"loss\":null") != std::string::npos);
  BOOST_TEST(std::isnan(metrics_from_json(line).loss));
  BOOST_TEST(std::isnan(metrics_from_json(line).grad_norm));
}

BOOST_AUTO_TEST_CASE(the_names_that_others_read_are_there) {
  StepMetrics m;
  m.eval_loss = 1;
  const std::string line = to_json(m);
  for (const char* key : {"step", "loss", "valid_tokens", "tokens", "grad_norm", "lr", "step_ms", "tokens_per_s", "useful_pairs", "computed_pairs", "padding",
                          "eval_loss"})
    BOOST_TEST(line.find(fmt::format("\"{}\":", key)) != std::string::npos, key);
  m.eval_loss.reset();
  BOOST_TEST(to_json(m).find("eval_loss") == std::string::npos);
}

BOOST_AUTO_TEST_CASE(what_depends_on_time_is_set_apart) {
  std::mt19937_64 random(4);
  StepMetrics a = random_metrics(random), b = a;
  b.step_ms += 1;
  b.tokens_per_s = 3;
  b.resident_bytes = 77;
  b.peak_share_useful = 0.5;
  b.peak_share_causal.reset();
  BOOST_TEST((without_time(a) == without_time(b)));
  b.loss = std::nextafter(a.loss, 0.0);  // control: the rest is compared to the last bit
  BOOST_TEST(!(without_time(a) == without_time(b)));
}

BOOST_AUTO_TEST_CASE(wrong_lines_are_refused_by_name) {
  const auto refused = [](const std::string& line, const std::string& part) {
    check_error<DataError>([&] { metrics_from_json(line, "m.jsonl:7"); }, {"[m.jsonl:7]", part});
  };
  refused("", "not a JSON object");
  refused("[1]", "not a JSON object");
  refused("{\"step\":1", "not a JSON object");
  refused("{}", "\"step\" is missing");
  std::string line = to_json(StepMetrics{});
  refused(std::string(line).replace(line.find("\"step\":0"), 8, "\"step\":1.5"), "\"step\" is not an integer");
  refused(std::string(line).replace(line.find("\"loss\":0.0"), 10, "\"loss\":\"x\""), "\"loss\" is not a number");
  refused(std::string(line).replace(line.find("false"), 5, "1"), "\"skipped\" is not true or false");
}

BOOST_AUTO_TEST_CASE(a_torn_last_line_is_left_out) {
  const Scratch scratch;
  StepMetrics m;
  m.step = 1;
  const std::string line = to_json(m);
  write_atomically(disk(), scratch.path("m"), line + "\n" + line + "\n" + line.substr(0, 20));
  BOOST_TEST(read_metrics(disk(), scratch.path("m")).size() == 2u);
  write_atomically(disk(), scratch.path("m"), line + "\nbroken\n" + line + "\n");
  check_error<DataError>([&] { read_metrics(disk(), scratch.path("m")); }, {"m:2]"});
}

BOOST_AUTO_TEST_SUITE_END()
