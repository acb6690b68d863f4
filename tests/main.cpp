#define BOOST_TEST_MODULE quire
#include <boost/test/unit_test.hpp>
