// What reductions over ranks compute: the parts of all ranks combined element by element, from the first rank's to the last one's.
#pragma once
#include <cstdint>

#include "runtime/dtype.h"
#include "runtime/kernel.h"

namespace quire {

/// into[i] = part 0 [i], part 1 [i], ... combined from the left. Of `type` f64 and f32, and i64 where the largest is asked for, which a NaN is.
/// `into` may be one of the parts.
struct CombineArgs {
  static constexpr const char* op = "combine";
  DType type;
  int64_t count;         ///< elements of a part
  int64_t parts, own;    ///< how many, and which of them is `mine`
  const void* mine;
  const void* others;    ///< [parts - 1, count], in the order of ranks
  bool largest;          ///< instead of the sum
  void* into;
};

}  // namespace quire
