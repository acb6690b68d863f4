// Comparing boundary records and digests of documents on the CPU.
#include <cstring>

#include "ops/cpu/elementwise.h"
#include "ops/kernels.h"
#include "runtime/documents_digest.h"

namespace quire {
namespace {

void compare_records(Rank&, const CompareRecordsArgs& args) {
  if (*args.flag == 0 && args.bytes > 0 && std::memcmp(args.found, args.expected, static_cast<size_t>(args.bytes)) != 0) *args.flag = args.code;
}

void documents_digest(Rank&, const DocumentsDigestArgs& args) {
  const size_t tokens = static_cast<size_t>(args.tokens_count);
  *args.digest = digest_of_documents({args.indices, tokens}, {args.starts, tokens});
}

}  // namespace

template <>
KernelList<CompareRecordsArgs> cpu_kernels<CompareRecordsArgs>() {
  static constexpr Kernel<CompareRecordsArgs> list[] = {{"reference", always<CompareRecordsArgs>, compare_records}};
  return list;
}

template <>
KernelList<DocumentsDigestArgs> cpu_kernels<DocumentsDigestArgs>() {
  static constexpr Kernel<DocumentsDigestArgs> list[] = {{"reference", always<DocumentsDigestArgs>, documents_digest}};
  return list;
}

}  // namespace quire
