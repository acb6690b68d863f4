// The house form of errors, and the nearest known word.
#include "runtime/error.h"

#include "check.h"
#include "runtime/dtype.h"

using namespace quire;
using namespace quire::test;

BOOST_AUTO_TEST_SUITE(error)

BOOST_AUTO_TEST_CASE(text_has_the_house_form_and_the_type_is_kept) {
  check_error<ShapeError>([] { fail<ShapeError>("matmul", "inner sizes {} and {} differ", 768, 512); }, {"[matmul] inner sizes 768 and 512 differ"});
  BOOST_CHECK_THROW(fail<DataError>("x", "y"), Error);
  BOOST_CHECK_THROW(fail("x", "y"), std::runtime_error);
}

BOOST_AUTO_TEST_CASE(nearest_word_is_found_or_refused) {
  const std::vector<std::string> known = {"learning_rate", "weight_decay", "warmup_steps", "eps", "lr"};
  BOOST_TEST(nearest("learning_rat", known) == "learning_rate");
  BOOST_TEST(nearest("learnign_rate", known) == "learning_rate");
  BOOST_TEST(nearest("warmup_step", known) == "warmup_steps");
  BOOST_TEST(nearest("epz", known) == "eps");
  BOOST_TEST(nearest("eps", known) == "eps");
  BOOST_TEST(nearest("zzzzzzzzzz", known) == "");
  BOOST_TEST(nearest("abc", known) == "");  // three letters: one may be off, not two
  BOOST_TEST(nearest("word", {}) == "");
  // The nearest one wins, not the first within reach.
  BOOST_TEST(nearest("abcdef", {"abcxyf", "abcdxf"}) == "abcdxf");
}

BOOST_AUTO_TEST_CASE(unknown_dtype_names_the_allowed_and_the_nearest) {
  for (const DType t : {DType::f64, DType::f32, DType::bf16, DType::i32, DType::i64}) BOOST_TEST((dtype_from(name_of(t)) == t));
  check_error<ConfigError>([] { dtype_from("bf61"); }, {"[dtype]", "'bf61'", "f64, f32, bf16, i32, i64", "nearest: bf16"});
}

BOOST_AUTO_TEST_SUITE_END()
