// Whether cuDNN is on this machine.
#pragma once
#include <boost/test/unit_test.hpp>

#include "runtime/cuda/cudnn_library.h"
#include "runtime/error.h"

namespace quire::test {

/// Says so where it is not: the emulation plans with the real library.
inline bool has_cudnn() {
  try {
    cudnn();
    return true;
  } catch (const UnsupportedError& error) {
    BOOST_TEST_MESSAGE("skipped: " << error.what());
    return false;
  }
}

}  // namespace quire::test
