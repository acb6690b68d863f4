// Rows of a step dealt out to microbatches that cost alike.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace quire {

/// Which row stands where: place i gets row result[i], and places [m * size, (m + 1) * size) are microbatch m; the last microbatch may have fewer rows. Rows of a
/// microbatch keep their order. The dearest microbatch costs no more than it would with rows in their order. A pure function of the costs (each at
/// least 0, their sum below 2^63), so the same in every layout.
///
/// Dearest rows first, each to the cheapest microbatch with room (Graham's longest processing time, 1969, with as many rows for everybody), then rows change places
/// between the dearest microbatch and others while that lowers it. Microbatches then rise to the dearest and fall again: a pipeline fills and
/// drains with the cheap ones, while its ranks wait for each other, and neighbours, which run at one time, cost alike.
std::vector<size_t> arrange_rows(std::span<const int64_t> costs, int64_t microbatch_size);

/// Costs of the microbatches of rows in this order.
std::vector<int64_t> microbatch_costs(std::span<const int64_t> costs, std::span<const size_t> order, int64_t microbatch_size);

}  // namespace quire
