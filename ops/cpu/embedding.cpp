// Embedding lookup on the CPU.
#include <cstring>

#include "ops/cpu/elementwise.h"
#include "ops/kernels.h"
#include "runtime/rank.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/embedding.cpp"
#include "ops/cpu/targets.h"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include "ops/cpu/elementwise-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::HWY_NAMESPACE {
namespace {

template <class T>
void add_columns(const EmbeddingBackwardArgs& args, int64_t begin, int64_t end) {
  const Tag<T> d;
  for (int64_t token = 0; token < args.tokens_count; ++token) {
    const T* dy = static_cast<const T*>(args.dy) + token * args.width + begin;
    AccumulatorType<T>* into = static_cast<AccumulatorType<T>*>(args.dtable) + args.tokens[token] * args.width + begin;
    for_each_vector(d, end - begin, [&](int64_t i, int64_t n) HWY_ATTR {
      store_first(d, hn::Add(load_first(d, into + i, n), load_first(d, dy + i, n)), into + i, n);
    });
  }
}

void embedding_backward_columns(const EmbeddingBackwardArgs& args, int64_t begin, int64_t end) {
  by_type(args.type, [&](auto t) HWY_ATTR { add_columns<decltype(t)>(args, begin, end); });
}

}  // namespace
}  // namespace quire::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire {
namespace {

HWY_EXPORT(embedding_backward_columns);

void forward(Rank& rank, const EmbeddingForwardArgs& args) {
  const int64_t bytes = args.width * size_of(args.type), chunk_tokens = rows_per_task(args.width);
  rank.pool().parallel_for(chunks_of(args.tokens_count, chunk_tokens), [&](int64_t chunk, int) {
    for (int64_t i = chunk * chunk_tokens; i < std::min(args.tokens_count, (chunk + 1) * chunk_tokens); ++i)
      std::memcpy(static_cast<char*>(args.y) + i * bytes, static_cast<const char*>(args.table) + args.tokens[i] * bytes,
                  static_cast<size_t>(bytes));
  });
}

/// Every task owns some columns of all rows, so that the tokens of a row are added in ascending order without locks.
void backward(Rank& rank, const EmbeddingBackwardArgs& args) {
  constexpr int64_t columns = 64;
  const auto add = QUIRE_PICK(rank, embedding_backward_columns);
  rank.pool().parallel_for(chunks_of(args.width, columns), [&](int64_t block, int) {
    add(args, block * columns, std::min(args.width, (block + 1) * columns));
  });
}

}  // namespace

template <>
KernelList<EmbeddingForwardArgs> cpu_kernels<EmbeddingForwardArgs>() {
  static constexpr Kernel<EmbeddingForwardArgs> list[] = {{"vector", floating_type<EmbeddingForwardArgs>, forward}};
  return list;
}

template <>
KernelList<EmbeddingBackwardArgs> cpu_kernels<EmbeddingBackwardArgs>() {
  static constexpr Kernel<EmbeddingBackwardArgs> list[] = {{"vector", floating_type<EmbeddingBackwardArgs>, backward}};
  return list;
}

}  // namespace quire
#endif
