// Reductions and gatherings of tensors, on sends and receives. Every element is combined in the order of ranks, whoever does it.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "ops/combine.h"
#include "parallel/communicator.h"
#include "runtime/dispatch.h"
#include "runtime/error.h"

namespace quire {
namespace {

constexpr int64_t small_bytes = 4096;           // up to here fewer messages count for more than fewer bytes
constexpr int64_t chunk_elements = int64_t{1} << 16;  // of a loop over threads

template <class F>
void over_elements(Rank& rank, int64_t elements, F&& range) {
  if (elements <= chunk_elements) return range(int64_t{0}, elements);
  rank.pool().parallel_for(chunks_of(elements, chunk_elements), [&](int64_t chunk, int) {
    range(chunk * chunk_elements, std::min(elements, (chunk + 1) * chunk_elements));
  });
}

template <class T>
T larger(T a, T b) {
  if constexpr (std::is_floating_point_v<T>)
    if (std::isnan(a)) return a;
  return a >= b ? a : b;  // b where it is a NaN
}

template <class T>
void combine_typed(Rank& rank, const CombineArgs& args) {
  constexpr int64_t block = 1024;  // fits in the nearest cache
  const auto part = [&](int64_t of) {
    const int64_t place = of < args.own ? of : of - 1;
    return of == args.own ? static_cast<const T*>(args.mine) : static_cast<const T*>(args.others) + place * args.count;
  };
  over_elements(rank, args.count, [&](int64_t begin, int64_t end) {
    T sums[block];
    for (int64_t at = begin; at < end; at += block) {
      const int64_t count = std::min(block, end - at);
      std::memcpy(sums, part(0) + at, static_cast<size_t>(count) * sizeof(T));
      for (int64_t p = 1; p < args.parts; ++p) {
        const T* next = part(p) + at;
        if (args.largest)
          for (int64_t i = 0; i < count; ++i) sums[i] = larger(sums[i], next[i]);
        else
          for (int64_t i = 0; i < count; ++i) sums[i] += next[i];
      }
      std::memcpy(static_cast<T*>(args.into) + at, sums, static_cast<size_t>(count) * sizeof(T));
    }
  });
}

void combine_on_cpu(Rank& rank, const CombineArgs& args) {
  switch (args.type) {
    case DType::f64: return combine_typed<double>(rank, args);
    case DType::f32: return combine_typed<float>(rank, args);
    default: return combine_typed<int64_t>(rank, args);
  }
}

/// into = the ranks' parts combined; `others` [group size - 1, elements] are those but `mine`.
void combine(Communicator& group, Rank& rank, const Tensor& mine, const void* others, void* into, Reduction reduction) {
  dispatch(rank, CombineArgs{mine.dtype(), mine.elements(), group.size(), group.rank(), mine.raw(), others, reduction == Reduction::max, into});
}

void require_reducible(std::string_view where, const Tensor& tensor, Reduction reduction) {
  const DType dtype = tensor.dtype();
  if (dtype != DType::f64 && dtype != DType::f32 && !(dtype == DType::i64 && reduction == Reduction::max))
    fail<DTypeError>(where, "{}; allowed: f64, f32{}", describe(tensor), reduction == Reduction::max ? ", i64" : "");
}

void wait_all(const std::vector<Request>& requests) {
  for (const Request& request : requests) request.wait();
}

/// First element of a rank's slice: as even as can be, the slice of rank r ends where the next begins.
int64_t slice_begin(int64_t elements, int rank, int size) { return elements / size * rank + std::min<int64_t>(rank, elements % size); }

/// Every rank gets its part of all ranks' values, combined in the order of ranks. `part(r)`: what rank r is to combine.
template <class Part>
void combine_parts(Communicator& group, Rank& rank, const Part& part, void* into, Reduction reduction, const MessageLabel& label) {
  const Tensor own = part(group.rank());
  const Tensor received = Tensor::empty(rank, {group.size() - 1, own.elements()}, own.dtype(), Category::workspace);
  std::vector<Request> requests;
  group.together([&] {
    for (int place = 0; place < group.size() - 1; ++place) {
      const int other = place < group.rank() ? place : place + 1;
      requests.push_back(group.receive(received.slice(0, place, place + 1), other, label));
    }
    for (int other = 0; other < group.size(); ++other)
      if (other != group.rank()) requests.push_back(group.send(part(other), other, label));
  });
  wait_all(requests);
  combine(group, rank, own, received.raw(), into, reduction);
}

/// Every rank gets every other's part. `part(r)`: where that of rank r lies.
template <class Part>
void share_parts(Communicator& group, const Part& part, const MessageLabel& label) {
  std::vector<Request> requests;
  group.together([&] {
    for (int other = 0; other < group.size(); ++other)
      if (other != group.rank()) requests.push_back(group.receive(part(other), other, label));
    for (int other = 0; other < group.size(); ++other)
      if (other != group.rank()) requests.push_back(group.send(part(group.rank()), other, label));
  });
  wait_all(requests);
}

Tensor flat(const Tensor& tensor) { return tensor.reshape({tensor.elements()}); }

void require_multiple(std::string_view where, const Tensor& mine, const Tensor& all, int size) {
  if (mine.dtype() != all.dtype()) fail<DTypeError>(where, "part {} and whole {} differ in dtype", describe(mine), describe(all));
  if (mine.elements() * size != all.elements())
    fail<ShapeError>(where, "the whole {} is not {} times the part {}", describe(all), size, describe(mine));
}

}  // namespace

template <>
KernelList<CombineArgs> cpu_kernels<CombineArgs>() {
  static constexpr Kernel<CombineArgs> list[] = {{"in_order", [](const CombineArgs&) { return true; }, combine_on_cpu}};
  return list;
}

void Communicator::all_reduce(Rank& rank, const Tensor& values, Reduction reduction, const MessageLabel& label) {
  require_contiguous("all_reduce", values);
  require_reducible("all_reduce", values, reduction);
  if (size_ == 1 || values.elements() == 0) return;
  connect(rank);
  const MessageLabel named = with_purpose(label, "all-reduce");
  if (values.bytes() <= small_bytes) return all_reduce_small(rank, values, reduction, named);

  // Every rank combines one slice: it gets the others' parts of it, and they get the result.
  const Tensor whole = flat(values);
  const auto slice = [&](int owner) {
    return whole.slice(0, slice_begin(whole.elements(), owner, size_), slice_begin(whole.elements(), owner + 1, size_));
  };
  combine_parts(*this, rank, slice, slice(rank_).raw(), reduction, named);
  share_parts(*this, slice, named);
}

void Communicator::all_reduce_small(Rank& rank, const Tensor& values, Reduction reduction, const MessageLabel& label) {
  if (!values.on_host()) {  // every rank gets all values of all others
    const Tensor whole = flat(values);
    return combine_parts(*this, rank, [&](int) { return whole; }, whole.raw(), reduction, label);
  }
  std::vector<std::byte> parts = exchange({static_cast<std::byte*>(values.raw()), static_cast<size_t>(values.bytes())}, label);
  const auto own = parts.begin() + rank_ * values.bytes();
  parts.erase(own, own + values.bytes());
  combine(*this, rank, values, parts.data(), values.raw(), reduction);
}

void Communicator::all_gather(Rank& rank, const Tensor& mine, const Tensor& all, const MessageLabel& label) {
  require_contiguous("all_gather", mine);
  require_contiguous("all_gather", all);
  require_multiple("all_gather", mine, all, size_);
  if (mine.elements() == 0) return;
  if (size_ > 1) connect(rank);
  const MessageLabel named = with_purpose(label, "all-gather");
  const Tensor whole = all.reshape({size_, mine.elements()});
  const auto row = [&](int owner) { return whole.slice(0, owner, owner + 1); };
  if (row(rank_).raw() != mine.raw()) copy(rank, flat(mine), row(rank_).reshape({mine.elements()}));
  share_parts(*this, row, named);
}

void Communicator::reduce_scatter(Rank& rank, const Tensor& all, const Tensor& mine, const MessageLabel& label) {
  require_contiguous("reduce_scatter", mine);
  require_contiguous("reduce_scatter", all);
  require_multiple("reduce_scatter", mine, all, size_);
  require_reducible("reduce_scatter", mine, Reduction::sum);
  if (mine.elements() == 0) return;
  if (size_ == 1) {
    if (all.raw() != mine.raw()) copy(rank, flat(all), flat(mine));
    return;
  }
  connect(rank);
  const MessageLabel named = with_purpose(label, "reduce-scatter");
  const Tensor whole = all.reshape({size_, mine.elements()});
  combine_parts(*this, rank, [&](int owner) { return whole.slice(0, owner, owner + 1); }, mine.raw(), Reduction::sum, named);
}

void Communicator::broadcast(Rank& rank, const Tensor& values, int root, const MessageLabel& label) {
  require_contiguous("broadcast", values);
  if (root < 0 || root >= size_) fail<StateError>("broadcast", "root {} is not one of {} ranks", root, size_);
  if (size_ == 1 || values.elements() == 0) return;
  if (!values.on_host()) {
    connect(rank);
    std::vector<Request> requests;
    together([&] {
      if (rank_ != root) requests.push_back(receive(values, root, with_purpose(label, "broadcast")));
      else
        for (int other = 0; other < size_; ++other)
          if (other != root) requests.push_back(send(values, other, with_purpose(label, "broadcast")));
    });
    return wait_all(requests);
  }
  // A binomial tree over ranks counted from the root: a rank hears from the one without its lowest bit, then serves those with a lower bit added.
  const MessageLabel named = with_purpose(label, "broadcast");
  const int place = (rank_ - root + size_) % size_;
  int bit = 1;
  while (bit < size_ && (place & bit) == 0) bit *= 2;
  if (place != 0) receive(values, (place - bit + root) % size_, named).wait();
  std::vector<Request> requests;
  for (bit /= 2; bit > 0; bit /= 2)
    if (place + bit < size_) requests.push_back(send(values, (place + bit + root) % size_, named));
  wait_all(requests);
}

}  // namespace quire
