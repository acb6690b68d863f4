#include "bench/made_step.h"

#include "runtime/random.h"

namespace quire::bench {

LoadedStep made_step(const std::vector<std::vector<int64_t>>& rows, int64_t vocabulary) {
  HostBatch host;
  std::vector<int64_t> lengths;
  for (const std::vector<int64_t>& row : rows) lengths.insert(lengths.end(), row.begin(), row.end());
  host.documents = Documents::from_lengths(lengths);
  host.rows = static_cast<int64_t>(rows.size());
  const int64_t tokens = host.documents.tokens();
  for (int64_t i = 0; i < tokens; ++i)
    host.tokens.push_back(static_cast<int32_t>(random_bits(2, 0, 0, static_cast<uint64_t>(i)) % static_cast<uint64_t>(vocabulary)));
  host.targets = host.tokens;
  host.valid = tokens;
  LoadedStep step;
  step.plan.rows.resize(rows.size());
  step.plan.tokens = step.plan.valid = tokens;
  step.microbatches.push_back(std::move(host));
  return step;
}

}  // namespace quire::bench
