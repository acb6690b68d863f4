#include "parallel/gradient_reducer.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/digest.h"
#include "runtime/error.h"

namespace quire {

GradientReducer::GradientReducer(Rank& rank, ParameterSet& parameters, Communicator& replicas, const ReductionOptions& options)
    : rank_(rank), parameters_(parameters), options_(options), replicas_(replicas) {
  if (options.bucket_bytes < 1) fail<ConfigError>("gradients", "bucket_bytes {} is below 1", options.bucket_bytes);
  if (options.buckets_under_way < 1) fail<ConfigError>("gradients", "buckets_under_way {} is below 1", options.buckets_under_way);
  for (Parameter& p : parameters) {
    if (p.gradients.empty()) fail<StateError>("gradients", "'{}' has no gradient to reduce", p.name);
    index_.emplace(&p, states_.size());
    states_.emplace_back().contributions.resize(p.gradients.size());
  }
  if (replicas.size() > 1) sum_ = std::make_unique<OrderedSum>(rank, replicas);
}

void GradientReducer::exclude(Parameter& parameter) {
  if (planned_) fail<StateError>("gradients", "'{}' is excluded after the first step began", parameter.name);
  if (!index_.contains(&parameter)) fail<StateError>("gradients", "'{}' is none of the parameters that are reduced", parameter.name);
  excluded_.insert(&parameter);
}

std::vector<Tensor> GradientReducer::cut(const Tensor& gradients) const {
  const int64_t elements = gradients.elements(), most = std::max<int64_t>(options_.bucket_bytes / size_of(gradients.dtype()), 1);
  const int64_t pieces = (elements + most - 1) / most;
  std::vector<Tensor> result;
  for (int64_t i = pieces; i-- > 0;) result.push_back(gradients.slice(0, elements * i / pieces, elements * (i + 1) / pieces));
  return result;
}

/// Buckets for the parameters [first, last), which lie next to each other.
void GradientReducer::add_buckets(size_t first, size_t last) {
  if (first == last) return;
  const size_t begin = buckets_.size();
  for (const Tensor& values : cut(parameters_.gradient_range(first, last)))
    buckets_.push_back({values, static_cast<int64_t>(last - first), 0});
  for (size_t p = first; p < last; ++p) {
    states_[p].first_bucket = begin;
    states_[p].buckets = buckets_.size() - begin;
  }
}

void GradientReducer::plan() {
  planned_ = true;
  if (!sum_) return;
  size_t last = parameters_.size(), first = last;  // [first, last): the parameters of the bucket that is being filled
  const auto close = [&](size_t next) {
    add_buckets(first, last);
    first = last = next;
  };
  for (size_t p = parameters_.size(); p-- > 0;) {
    if (excluded(parameters_[p])) {
      close(p);
      continue;
    }
    const bool alone = parameters_[p].gradients.size() > 1;  // the gradients of its further uses lie between it and the next
    if (alone || (first < last && parameters_.gradient_range(p, last).bytes() > options_.bucket_bytes)) close(p + 1);
    first = p;
    if (alone) close(p);
  }
  close(0);
  int64_t largest = 1;
  DType dtype = DType::f32;
  for (const Bucket& bucket : buckets_) largest = std::max(largest, bucket.values.elements());
  for (size_t p = 0; p < parameters_.size(); ++p) {
    dtype = parameters_[p].gradients[0].dtype();
    if (excluded(parameters_[p]))
      for (const Tensor& piece : cut(parameters_.gradient_range(p, p + 1))) largest = std::max(largest, piece.elements());
  }
  compare_plans();
  sum_->reserve(dtype, largest, options_.buckets_under_way);
}

void GradientReducer::compare_plans() {
  Digest digest;
  int64_t bytes = 0;
  for (const Parameter& p : parameters_) {
    digest.update(std::as_bytes(std::span(p.name)));
    digest.update_value(p.shape.elements());
    digest.update_value(static_cast<int64_t>(excluded(p)));
  }
  for (const Bucket& bucket : buckets_) {
    digest.update_value(bucket.values.bytes());
    bytes += bucket.values.bytes();
  }
  const std::vector<std::string> plans = replicas_.gather_texts(fmt::format("{} buckets of {} bytes in all (digest {})", buckets_.size(), bytes, to_hex(digest.value())));
  for (size_t other = 1; other < plans.size(); ++other)
    if (plans[other] != plans[0])
      fail<StateError>("gradients", "replica {} has {}, replica 0 {}; parameters, exclusions and bucket_bytes must be the same on all replicas", other,
                       plans[other], plans[0]);
}

void GradientReducer::begin_step(int64_t contributions, int64_t step) {
  if (in_step_) fail<StateError>("gradients", "a step begins before the last one was finished");
  if (contributions < 0) fail<StateError>("gradients", "{} contributions; allowed: 0 or more", contributions);
  if (!planned_) plan();
  in_step_ = true;
  contributions_ = contributions;
  label_ = {.kind = MessageKind::gradients, .step = step};
  counters_ = {.buckets = static_cast<int64_t>(buckets_.size())};
  bytes_before_ = traffic()[MessageKind::gradients].bytes;
  next_ = 0;
  for (Bucket& bucket : buckets_) bucket.unready = bucket.parameters;
  for (State& state : states_) {
    std::fill(state.contributions.begin(), state.contributions.end(), 0);
    state.ready = false;
  }
  if (contributions > 0) return;
  for (size_t p = 0; p < states_.size(); ++p) make_ready(p);
  advance();
}

void GradientReducer::make_ready(size_t index) {
  State& state = states_[index];
  Parameter& parameter = parameters_[index];
  if (state.ready || excluded(parameter)) return;
  state.ready = true;
  for (size_t use = 1; use < parameter.gradients.size(); ++use) accumulate(rank_, parameter.gradients[use], parameter.gradients[0]);
  for (size_t i = 0; i < state.buckets; ++i) --buckets_[state.first_bucket + i].unready;
}

void GradientReducer::contributed(Parameter& parameter, int use) {
  if (!in_step_) fail<StateError>("gradients", "'{}' gets a gradient outside of a step", parameter.name);
  const auto found = index_.find(&parameter);
  if (found == index_.end()) fail<StateError>("gradients", "'{}' is none of the parameters that are reduced", parameter.name);
  State& state = states_[found->second];
  if (use < 0 || use >= static_cast<int>(state.contributions.size()))
    fail<StateError>("gradients", "'{}' has no use {}", parameter.name, use);
  if (++state.contributions[static_cast<size_t>(use)] > contributions_)
    fail<StateError>("gradients", "use {} of '{}' gets contribution {}; announced: {}", use, parameter.name, state.contributions[static_cast<size_t>(use)],
                     contributions_);
  if (std::all_of(state.contributions.begin(), state.contributions.end(), [&](int64_t count) { return count == contributions_; }))
    make_ready(found->second);
  advance();
}

void GradientReducer::start_ready(const MessageLabel& label) {
  for (; next_ < buckets_.size() && buckets_[next_].unready == 0 && sum_->can_start(); ++next_) sum_->start(buckets_[next_].values, label);
}

void GradientReducer::advance() {
  if (!sum_) return;
  sum_->advance();
  if (!in_step_) return;
  start_ready(label_);
  counters_.started_before_finish = static_cast<int64_t>(next_);
}

void GradientReducer::finish(const MessageLabel& label) {
  if (!in_step_) fail<StateError>("gradients", "finish without begin_step");
  for (size_t p = 0; p < states_.size(); ++p) make_ready(p);
  if (sum_) {
    MessageLabel in_finish = label;
    in_finish.kind = MessageKind::gradients;
    for (start_ready(in_finish); next_ < buckets_.size() || !sum_->idle(); start_ready(in_finish)) sum_->wait();
    counters_.bytes_sent = traffic()[MessageKind::gradients].bytes - bytes_before_;
  }
  in_step_ = false;
}

void GradientReducer::reduce_now(Parameter& parameter, const MessageLabel& label) {
  if (in_step_ || !planned_) fail<StateError>("gradients", "'{}' is reduced by itself {}", parameter.name, in_step_ ? "within a step" : "before the first step");
  const auto found = index_.find(&parameter);
  if (found == index_.end()) fail<StateError>("gradients", "'{}' is none of the parameters that are reduced", parameter.name);
  if (!sum_) return;
  for (const Tensor& piece : cut(parameters_.gradient_range(found->second, found->second + 1))) {
    while (!sum_->can_start()) sum_->wait();
    sum_->start(piece, label);
    sum_->advance();
  }
  while (!sum_->idle()) sum_->wait();
}

std::vector<int64_t> GradientReducer::bucket_bytes() const {
  std::vector<int64_t> bytes;
  for (const Bucket& bucket : buckets_) bytes.push_back(bucket.values.bytes());
  return bytes;
}

}  // namespace quire
