// Libraries that are loaded when they are first asked for.
#include "runtime/cuda/shared_library.h"

#include "check.h"
#include "runtime/error.h"

using namespace quire;
using namespace quire::test;

BOOST_AUTO_TEST_SUITE(shared_library)

BOOST_AUTO_TEST_CASE(the_first_name_that_is_there_is_loaded) {
  const SharedLibrary library({"libnothing_of_that_name.so.1", "libm.so.6"}, "a test");
  BOOST_TEST(library.function<double(double)>("sqrt")(81.0) == 9.0);
}

BOOST_AUTO_TEST_CASE(a_missing_library_or_function_is_named) {
  check_error<UnsupportedError>([] { SharedLibrary({"libnothing_of_that_name.so.1"}, "a test"); }, {"[cuda]", "libnothing_of_that_name.so.1", "needed for a test", "LD_LIBRARY_PATH"});
  const SharedLibrary library({"libm.so.6"}, "a test");
  check_error<UnsupportedError>([&] { library.symbol("no_such_function"); }, {"[cuda]", "libm.so.6", "needed for a test", "no_such_function", "too old"});
}

BOOST_AUTO_TEST_SUITE_END()
