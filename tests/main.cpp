// The entry of every test program. (BOOST_TEST_MODULE would have to be defined before the precompiled header.)
#include <boost/test/unit_test.hpp>

namespace {

bool name_suite() {
  boost::unit_test::framework::master_test_suite().p_name.value = "quire";
  return true;
}

}  // namespace

int main(int argc, char** argv) { return boost::unit_test::unit_test_main(&name_suite, argc, argv); }
