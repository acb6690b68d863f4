#include "parallel/ordered_sum.h"

#include "ops/combine.h"
#include "ops/kernels.h"
#include "runtime/dispatch.h"
#include "runtime/error.h"

namespace quire {

OrderedSum::OrderedSum(Rank& rank, Communicator& ranks) : rank_(rank), collect_(ranks.split(0)), distribute_(on_device() ? nullptr : ranks.split(0)) {
  collect_->connect(rank);
}

void OrderedSum::reserve(DType dtype, int64_t elements, int64_t depth) {
  if (!idle()) fail<StateError>("gradients", "memory is reserved while sums are under way");
  const int64_t n = collect_->size(), largest_part = (elements + n - 1) / n;
  scratch_.clear();
  for (int64_t i = 0; i < depth; ++i) scratch_.push_back(Tensor::empty(rank_, {(n - 1) * largest_part}, dtype, Category::gradients));
}

Tensor OrderedSum::part(const Tensor& values, int of) const {
  const int64_t elements = values.elements(), n = collect_->size();
  return values.slice(0, elements * of / n, elements * (of + 1) / n);
}

void OrderedSum::start(const Tensor& values, const MessageLabel& label) {
  if (!can_start()) fail<StateError>("gradients", "{} sums are under way, as many as were reserved", collecting_.size());
  if (collecting_.size() == scratch_.size()) wait();
  const int n = collect_->size(), own = collect_->rank();
  const int64_t elements = part(values, own).elements();
  const Tensor& memory = scratch_[started_++ % scratch_.size()];
  if (elements * (n - 1) > memory.elements() || values.dtype() != memory.dtype())
    fail<StateError>("gradients", "{} does not fit in what was reserved, {}", describe(values), describe(memory));
  Sum sum{values, memory.slice(0, 0, elements * (n - 1)), label, {}, 0};
  collect_->together([&] {
    for (int other = 0, at = 0; other < n; ++other) {
      if (other == own || elements == 0) continue;
      sum.requests.push_back(collect_->receive(sum.scratch.slice(0, at * elements, (at + 1) * elements), other, label));
      ++at;
    }
    for (int step = 1; step < n; ++step) {  // each rank begins with another one, so that nobody is asked by all at once
      const int other = (own + step) % n;
      if (const Tensor theirs = part(values, other); theirs.elements() > 0) sum.requests.push_back(collect_->send(theirs, other, label));
    }
  });
  collecting_.push_back(std::move(sum));
}

bool OrderedSum::Sum::all_done() {
  while (done < requests.size() && requests[done].done()) ++done;
  return done == requests.size();
}

void OrderedSum::Sum::wait_for_one() {
  if (!all_done()) requests[done].wait();
}

void OrderedSum::add_parts(const Sum& sum) {
  const int n = collect_->size(), own = collect_->rank();
  const Tensor mine = part(sum.values, own);
  const int64_t elements = mine.elements();
  if (elements == 0) return;
  if (on_device()) return dispatch(rank_, CombineArgs{mine.dtype(), elements, n, own, mine.raw(), sum.scratch.raw(), false, mine.raw()});  // in one launch
  const auto received = [&](int other) {
    const int64_t at = other < own ? other : other - 1;
    return sum.scratch.slice(0, at * elements, (at + 1) * elements).raw();
  };
  void* total = own == 0 ? mine.raw() : received(0);
  for (int other = 1; other < n; ++other) {
    const void* next = other == own ? mine.raw() : received(other);
    void* into = other == own ? mine.raw() : total;  // from its own place in the order on a rank adds where the sum belongs
    dispatch(rank_, SumArgs{mine.dtype(), elements, total, next, into});
    total = into;
  }
}

void OrderedSum::distribute(Sum sum) {
  Communicator& group = distributing();
  const int n = group.size(), own = group.rank();
  sum.requests.clear();
  sum.done = 0;
  sum.scratch = {};
  group.together([&] {
    for (int other = 0; other < n; ++other)
      if (const Tensor theirs = part(sum.values, other); other != own && theirs.elements() > 0) sum.requests.push_back(group.receive(theirs, other, sum.label));
    if (const Tensor mine = part(sum.values, own); mine.elements() > 0)
      for (int step = 1; step < n; ++step) sum.requests.push_back(group.send(mine, (own + step) % n, sum.label));
  });
  distributing_.push_back(std::move(sum));
}

void OrderedSum::move_on() {
  add_parts(collecting_.front());
  Sum sum = std::move(collecting_.front());
  collecting_.pop_front();
  distribute(std::move(sum));
}

void OrderedSum::advance() {
  if (on_device()) return;
  while (!collecting_.empty() && collecting_.front().all_done()) move_on();
  while (!distributing_.empty() && distributing_.front().all_done()) distributing_.pop_front();
}

void OrderedSum::wait() {
  if (on_device()) {
    std::deque<Sum>& oldest = collecting_.empty() ? distributing_ : collecting_;
    if (oldest.empty()) return;
    for (const Request& request : oldest.front().requests) request.wait();
    if (!collecting_.empty()) move_on();
    else distributing_.pop_front();
    return;
  }
  // First what others wait for: they can not give us sums before they have our parts.
  if (!collecting_.empty()) collecting_.front().wait_for_one();
  else if (!distributing_.empty()) distributing_.front().wait_for_one();
  advance();
}

TrafficCounters OrderedSum::traffic() const {
  TrafficCounters total = collect_->traffic();
  for (size_t kind = 0; distribute_ && kind < total.sent.size(); ++kind) {
    total.sent[kind].messages += distribute_->traffic().sent[kind].messages;
    total.sent[kind].bytes += distribute_->traffic().sent[kind].bytes;
  }
  return total;
}

}  // namespace quire
