// The digest of documents, in a form that devices can make in parallel.
#pragma once
#include <cstdint>
#include <span>

namespace quire {

/// Tokens of one piece.
constexpr int64_t digest_piece = 256;
/// `Documents::digest` of documents with these indices and starts: the digest of the number of tokens (8 bytes) and of the pieces' digests, which may be made side by
/// side. A piece's digest is of its indices and then its starts.
uint64_t digest_of_documents(std::span<const int32_t> indices, std::span<const int32_t> starts);

}  // namespace quire
