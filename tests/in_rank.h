// A check for the threads of ranks: Boost.Test's own are made for one thread.
#pragma once
#include <stdexcept>

namespace quire::test {

inline void require_in_rank(bool right, const char* what) {
  if (!right) throw std::runtime_error(what);
}

}  // namespace quire::test
