#include "parallel/device_boundaries.h"

#include "ops/kernels.h"
#include "runtime/dispatch.h"

namespace quire {

namespace {

/// A record's part of 4-byte words.
struct RecordBody {
  const int32_t* indices;  ///< null: 0, 1, ...
  const int32_t* starts;
};
RecordBody body_of(const Tensor& record, int64_t tokens) {
  const int32_t* const body = record.data<int32_t>() + boundary_header_words;
  const bool whole = record.elements() == boundary_header_words + tokens;
  if (!whole && record.elements() != boundary_header_words + 2 * tokens) fail<ShapeError>("boundary_record", "{} for {} tokens", describe(record), tokens);
  return whole ? RecordBody{nullptr, body} : RecordBody{body, body + tokens};
}

}  // namespace

DeviceBoundaries DeviceBoundaries::empty(Rank& rank, int64_t tokens, bool positions) {
  const auto integers = [&] { return Tensor::empty(rank, {tokens}, DType::i32, Category::data); };
  return {integers(), integers(), positions ? integers() : Tensor()};
}

void compare_boundary_records(Rank& rank, const Tensor& found, const Tensor& expected, const Tensor& flag, double code) {
  if (found.bytes() != expected.bytes()) fail<ShapeError>("boundary_record", "{} compared with {}", describe(found), describe(expected));
  dispatch(rank, CompareRecordsArgs{expected.bytes(), found.raw(), expected.raw(), flag.data<double>(), code});
}

std::optional<BoundaryMismatch> take_mismatch(Rank& rank, const Tensor& flag) {
  const double code = flag.to_vector<double>().at(0);
  fill_zero(rank, flag);
  return code != 0 ? std::optional(mismatch_of(code)) : std::nullopt;
}

void take_boundaries(Rank& rank, const Tensor& found, const Tensor& expected, int64_t tokens, const BoundaryLimits& limits, const DeviceBoundaries& into, int64_t first) {
  const RecordBody came = body_of(found, tokens), due = body_of(expected, tokens);
  const auto part = [&](const Tensor& all) { return all.slice(0, first, first + tokens).data<int32_t>(); };
  dispatch(rank, ReceivedBoundariesArgs{tokens, limits.microbatch_tokens, limits.positions, came.indices, came.starts, due.indices, due.starts, part(into.global), part(into.start),
                                        into.positions.defined() ? part(into.positions) : nullptr});
}

DocumentRuns runs_of_boundaries(Rank& rank, std::vector<DocumentRun> expected, const DeviceBoundaries& boundaries) {
  const int64_t tokens = boundaries.global.elements();
  const Tensor tiles = Tensor::empty(rank, {4 * chunks_of(tokens, boundary_tile)}, DType::i32, Category::data);
  dispatch(rank, BoundaryTilesArgs{tokens, boundaries.global.data<int32_t>(), boundaries.start.data<int32_t>(), reinterpret_cast<TileBoundaries*>(tiles.raw())});
  auto runs = std::make_shared<RunList>(std::move(expected));
  runs->set_table(rank, boundaries.global, boundaries.start, tiles);
  return runs;
}

Tensor make_boundary_record(Rank& rank, const BoundaryHeader& header, const Documents& expected, const DeviceBoundaries& boundaries) {
  const Tensor record = make_boundary_record(rank, header, expected);  // for its header; what it says of tokens is overwritten
  const int64_t tokens = expected.tokens();
  const RecordBody body = body_of(record, tokens);
  const auto words = [&](int64_t begin) { return record.slice(0, begin, begin + tokens); };
  if (body.indices != nullptr) copy(rank, boundaries.global, words(boundary_header_words));
  copy(rank, boundaries.start, words(record.elements() - tokens));
  dispatch(rank, DocumentsDigestArgs{tokens, boundaries.global.data<int32_t>(), boundaries.start.data<int32_t>(),
                                     reinterpret_cast<uint64_t*>(static_cast<char*>(record.raw()) + boundary_digest_offset)});
  return record;
}

}  // namespace quire
