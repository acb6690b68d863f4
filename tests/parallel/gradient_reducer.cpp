// Gradients of replicas: sums in the order of ranks to the bit, whatever the buckets and the order of contributions; overlap; traffic; a real model.
#include "parallel/gradient_reducer.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

#include "check.h"
#include "collective_case.h"
#include "data/loader.h"
#include "model/decoder_case.h"

namespace quire::test {
namespace {

struct Contribution {
  size_t parameter;
  int use;
  int64_t microbatch;
};

/// Parameters, options and everything that happens on every rank in every step, drawn from a seed.
struct ReductionCase {
  explicit ReductionCase(uint64_t number) : seed(number) {
    std::mt19937_64 random(seed);
    for (size_t p = 3 + random() % 7; p > 0; --p) {
      const int64_t rows = 1 + static_cast<int64_t>(random() % 40), columns = 1 + static_cast<int64_t>(random() % 40);
      shapes.push_back(random() % 3 == 0 ? Shape{1 + static_cast<int64_t>(random() % 3)} : random() % 2 == 0 ? Shape{rows, columns} : Shape{rows});
      uses.push_back(random() % 4 == 0 ? 1 + static_cast<int>(random() % 3) : 1);
    }
    options.bucket_bytes = int64_t{1} << (random() % 18);
    options.buckets_under_way = 1 + static_cast<int64_t>(random() % 4);
    if (random() % 2 == 0) excluded = static_cast<int64_t>(random() % shapes.size());
  }

  void declare(ParameterSet& parameters) const {
    for (size_t p = 0; p < shapes.size(); ++p) parameters.add("p" + std::to_string(p), shapes[p], 1).uses = uses[p];
  }
  int64_t contributions(int rank, int64_t step) const { return static_cast<int64_t>((seed + static_cast<uint64_t>(rank * 3 + step)) % 4); }  // 0 too
  std::vector<Contribution> order(int rank, int64_t step) const {
    std::vector<Contribution> all;
    for (size_t p = 0; p < shapes.size(); ++p)
      for (int use = 0; use < uses[p]; ++use)
        for (int64_t m = 0; m < contributions(rank, step); ++m) all.push_back({p, use, m});
    std::mt19937_64 random(seed * 100 + static_cast<uint64_t>(rank * 10 + step));
    std::shuffle(all.begin(), all.end(), random);
    return all;
  }
  /// A hook that does not come: every now and then a parameter whose operation nothing uses.
  bool silent(size_t parameter, int64_t step) const { return (seed + parameter * 5 + static_cast<uint64_t>(step)) % 11 == 0; }
  template <class T> std::vector<T> values(const Contribution& c, int rank, int64_t step) const {
    const uint64_t round = ((seed * 10 + c.parameter) * 4 + static_cast<uint64_t>(c.use)) * 8 + static_cast<uint64_t>(c.microbatch) + 100 * static_cast<uint64_t>(step);
    return contribution<T>(round, rank, shapes[c.parameter].elements());
  }
  /// Of one rank alone, per parameter: contributions added as they come, then the uses in order.
  template <class T> std::vector<std::vector<T>> local(int rank, int64_t step) const {
    std::vector<std::vector<std::vector<T>>> sums(shapes.size());
    for (size_t p = 0; p < shapes.size(); ++p)
      sums[p].assign(static_cast<size_t>(uses[p]), std::vector<T>(static_cast<size_t>(shapes[p].elements())));
    for (const Contribution& c : order(rank, step)) add(values<T>(c, rank, step), sums[c.parameter][static_cast<size_t>(c.use)]);
    std::vector<std::vector<T>> result;
    for (size_t p = 0; p < shapes.size(); ++p) {
      if (static_cast<int64_t>(p) != excluded)
        for (size_t use = 1; use < sums[p].size(); ++use) add(sums[p][use], sums[p][0]);
      result.push_back(sums[p][0]);
    }
    return result;
  }
  /// Over the ranks 0..n-1 in that order, or from the last to the first.
  template <class T> std::vector<std::vector<T>> total(int ranks, int64_t step, bool backwards = false) const {
    std::vector<std::vector<T>> sums = local<T>(backwards ? ranks - 1 : 0, step);
    for (int i = 1; i < ranks; ++i) {
      const auto its = local<T>(backwards ? ranks - 1 - i : i, step);
      for (size_t p = 0; p < sums.size(); ++p) add(its[p], sums[p]);
    }
    return sums;
  }
  template <class T> static void add(const std::vector<T>& from, std::vector<T>& into) {
    for (size_t i = 0; i < into.size(); ++i) into[i] += from[i];
  }

  uint64_t seed;
  std::vector<Shape> shapes;
  std::vector<int> uses;
  ReductionOptions options;
  int64_t excluded = -1;
};

template <class T> void add_to(const Tensor& gradient, const std::vector<T>& values) {
  for (size_t i = 0; i < values.size(); ++i) gradient.data<T>()[i] += values[i];
}

/// Three steps of a case on one of its ranks.
template <class T> void reduce_case(const ReductionCase& c, Communicator& replicas, std::atomic<int64_t>& bytes_sent) {
  Rank rank({.threads = 1 + static_cast<int>(c.seed % 2), .poison = true});
  ParameterSet parameters;
  c.declare(parameters);
  parameters.allocate(rank, dtype_of<T>::value);
  GradientReducer reducer(rank, parameters, replicas, c.options);
  if (c.excluded >= 0) reducer.exclude(parameters[static_cast<size_t>(c.excluded)]);
  for (int64_t step = 0; step < 3; ++step) {
    const MessageLabel label{MessageKind::gradients, step, -1, -1};
    parameters.zero_gradients(rank);
    reducer.begin_step(c.contributions(replicas.rank(), step), step);
    for (const Contribution& event : c.order(replicas.rank(), step)) {
      Parameter& parameter = parameters[event.parameter];
      add_to(parameter.gradients[static_cast<size_t>(event.use)], c.values<T>(event, replicas.rank(), step));
      if (!c.silent(event.parameter, step)) reducer.contributed(parameter, event.use);
      reducer.advance();
    }
    reducer.finish(label);
    if (c.excluded >= 0) reducer.reduce_now(parameters[static_cast<size_t>(c.excluded)], {MessageKind::tied_gradients, step, -1, -1});
    const auto expected = c.total<T>(replicas.size(), step);
    for (size_t p = 0; p < expected.size(); ++p)
      require(same_bits(parameters[p].gradients[0].to_vector<T>(), expected[p]), "gradients are the sum in the order of ranks, to the bit");
    if (step == 0) bytes_sent += reducer.counters().bytes_sent;
  }
  int64_t bytes = 0;
  for (const int64_t bucket : reducer.bucket_bytes()) {
    require(bucket <= std::max(c.options.bucket_bytes, size_of(dtype_of<T>::value)), "no bucket is larger than allowed");
    bytes += bucket;
  }
  if (replicas.rank() == 0) bytes_sent -= 2 * (replicas.size() - 1) * bytes;
}

BOOST_AUTO_TEST_CASE(sums_over_uses_and_replicas_have_the_bits_of_one_order) {
  int64_t differing = 0;
  for (uint64_t seed = 1; seed <= 24; ++seed)
    for (const int ranks : {1, 2, 3, 4, 5}) {
      const ReductionCase c(seed);
      std::atomic<int64_t> bytes_sent{0};  // less what is expected: 2(n-1)/n of all buckets by each of n ranks
      run_local(ranks, {}, [&](Communicator& replicas) {
        if (seed % 2 == 0) reduce_case<float>(c, replicas, bytes_sent);
        else reduce_case<double>(c, replicas, bytes_sent);
      });
      BOOST_TEST(bytes_sent == 0);
      // The control: added from the last rank to the first the bits are others (two ranks commute).
      const bool same = c.total<float>(ranks, 0) == c.total<float>(ranks, 0, true);
      if (ranks <= 2) BOOST_TEST(same);
      differing += !same;
    }
  BOOST_TEST(differing > 40);
}

/// A set of `count` parameters of 96 numbers each, for exact counts.
ParameterSet even_parameters(Rank& rank, int count, DType dtype = DType::f32) {
  ParameterSet parameters;
  for (int p = 0; p < count; ++p) parameters.add("p" + std::to_string(p), {4, 24}, 1);
  parameters.allocate(rank, dtype);
  return parameters;
}

BOOST_AUTO_TEST_CASE(each_rank_sends_its_share_and_not_a_byte_more) {
  for (const int ranks : {1, 2, 3, 4})
    run_local(ranks, {}, [&](Communicator& replicas) {
      Rank rank;
      ParameterSet parameters = even_parameters(rank, 6);
      for (const int64_t bucket_bytes : {96 * 4 / 2, 96 * 4, 2 * 96 * 4, 100 * 96 * 4}) {
        GradientReducer reducer(rank, parameters, replicas, {.bucket_bytes = bucket_bytes});
        for (int step = 1; step <= 2; ++step) {
          reducer.begin_step(0);
          reducer.finish({});
          require(reducer.counters().bytes_sent == 2 * (ranks - 1) * parameters.elements() * 4 / ranks, "2(n-1)/n of the gradients");
          require(reducer.traffic()[MessageKind::gradients].bytes == step * reducer.counters().bytes_sent, "the communicator counts the same");
        }
        const int64_t buckets = ranks == 1 ? 0 : std::max<int64_t>(6 * 96 * 4 / bucket_bytes, 1);
        require(reducer.counters().buckets == buckets, "number of buckets");
        require(reducer.counters().started_before_finish >= std::min<int64_t>(buckets, 4), "nothing to wait for: all start at once");
      }
      for (const Parameter& p : parameters)
        for (const float x : p.gradients[0].to_vector<float>()) require(x == 0 && !std::signbit(x), "ranks without work add exact zeros");
    });
}

BOOST_AUTO_TEST_CASE(buckets_start_in_one_order_while_gradients_still_come) {
  run_local(2, {}, [](Communicator& replicas) {
    Rank rank;
    ParameterSet parameters = even_parameters(rank, 6);
    GradientReducer reducer(rank, parameters, replicas, {.bucket_bytes = 96 * 4, .buckets_under_way = 6});
    const auto started = [&](std::initializer_list<size_t> order) {
      std::vector<int64_t> counts;
      parameters.zero_gradients(rank);
      reducer.begin_step(1);
      for (const size_t p : order) {
        reducer.contributed(parameters[p], 0);
        counts.push_back(reducer.counters().started_before_finish);
      }
      reducer.finish({});
      require(reducer.counters().started_before_finish == (counts.empty() ? 0 : counts.back()), "finish counts nothing of its own");
      return counts;
    };
    using Counts = std::vector<int64_t>;
    require(started({5, 4, 3, 2, 1, 0}) == Counts({1, 2, 3, 4, 5, 6}), "as backward goes, each starts at once");
    require(started({0, 1, 2, 3, 4, 5}) == Counts({0, 0, 0, 0, 0, 6}), "the first in order lets all others wait");
    require(started({4, 5, 2, 3}) == Counts({0, 2, 2, 4}), "ready ones wait for those before them");
    require(started({}) == Counts(), "without hooks everything starts in finish");
  });
}

BOOST_AUTO_TEST_CASE(calls_at_the_wrong_moment_are_errors) {
  Rank rank;
  ParameterSet parameters = even_parameters(rank, 3), others = even_parameters(rank, 1);
  const auto alone = single_communicator();
  GradientReducer reducer(rank, parameters, *alone);
  check_error<StateError>([&] { reducer.contributed(parameters[0], 0); }, {"'p0'", "outside of a step"});
  check_error<StateError>([&] { reducer.finish({}); }, {"without begin_step"});
  check_error<StateError>([&] { reducer.exclude(others[0]); }, {"'p0' is none"});
  check_error<StateError>([&] { reducer.reduce_now(parameters[0], {}); }, {"before the first step"});
  check_error<StateError>([&] { reducer.begin_step(-1); }, {"-1 contributions"});
  reducer.begin_step(2);
  check_error<StateError>([&] { reducer.exclude(parameters[1]); }, {"'p1'", "after the first step began"});
  check_error<StateError>([&] { reducer.begin_step(2); }, {"before the last one was finished"});
  check_error<StateError>([&] { reducer.reduce_now(parameters[0], {}); }, {"within a step"});
  check_error<StateError>([&] { reducer.contributed(others[0], 0); }, {"'p0' is none"});
  check_error<StateError>([&] { reducer.contributed(parameters[2], 1); }, {"'p2' has no use 1"});
  for (int i = 0; i < 2; ++i) reducer.contributed(parameters[2], 0);
  check_error<StateError>([&] { reducer.contributed(parameters[2], 0); }, {"use 0 of 'p2'", "contribution 3", "announced: 2"});
  reducer.finish({});
  check_error<ConfigError>([&] { GradientReducer(rank, parameters, *alone, {.bucket_bytes = 0}); }, {"bucket_bytes 0"});
  check_error<ConfigError>([&] { GradientReducer(rank, parameters, *alone, {.buckets_under_way = 0}); }, {"buckets_under_way 0"});
}

// Broken on purpose: one replica leaves a parameter out, or has other buckets.
BOOST_AUTO_TEST_CASE(a_replica_with_other_buckets_is_found_out_at_the_first_step) {
  for (const bool leaves_out : {true, false})
    check_error<StateError>([&] {
      run_local(3, {}, [&](Communicator& replicas) {
        Rank rank;
        ParameterSet parameters = even_parameters(rank, 6);
        GradientReducer reducer(rank, parameters, replicas, {.bucket_bytes = replicas.rank() == 2 && !leaves_out ? 96 * 4 : 100});
        if (replicas.rank() == 2 && leaves_out) reducer.exclude(parameters[3]);
        reducer.begin_step(1);
      });
    }, {"replica 2 has", leaves_out ? "20 buckets of 1920 bytes" : "6 buckets of 2304 bytes", "replica 0 24 buckets of 2304 bytes"});
}

// Broken on purpose, a level lower: one rank leaves one sum out. Of other sizes the next one does not fit; of equal sizes the last one never comes.
BOOST_AUTO_TEST_CASE(a_rank_that_leaves_a_sum_out_is_found_out) {
  for (const bool equal_sizes : {true, false}) {
    CommunicatorOptions options;
    options.watchdog_seconds = 0.3;
    options.report = [](const std::string&) {};
    const auto body = [&](Communicator& replicas, bool complete) {
      Rank rank;
      OrderedSum sum(rank, replicas);
      sum.reserve(DType::f64, 100, 3);
      for (int i = 0; i < 3; ++i)
        if (complete || replicas.rank() != 1 || i != 1) sum.start(Tensor::zeros(rank, {equal_sizes ? 100 : 100 - 10 * i}, DType::f64), {MessageKind::gradients, 5, -1, -1});
      while (!sum.idle()) sum.wait();
      replicas.barrier();
    };
    run_local(3, options, [&](Communicator& replicas) { body(replicas, true); });
    BOOST_CHECK_THROW(run_local(3, options, [&](Communicator& replicas) { body(replicas, false); }), CommunicationError);
  }
}

std::shared_ptr<const Corpus> small_corpus() {
  CorpusInfo info;
  info.vocabulary_size = 23;
  info.eos = 22;
  auto corpus = std::make_shared<MemoryCorpus>(info);
  std::mt19937_64 random(5);
  for (int i = 0; i < 40; ++i) {
    std::vector<int32_t> tokens(1 + random() % 30, 22);
    for (size_t t = 0; t + 1 < tokens.size(); ++t) tokens[t] = static_cast<int32_t>(random() % 22);
    corpus->add(tokens);
  }
  return corpus;
}

/// The gradients of a share of one step of real training, summed over `replicas`, and how many buckets had started before all was computed.
std::vector<Doubles> replica_gradients(Communicator& replicas, const ModelConfig& config, Recomputation recomputation, int64_t rows, int64_t* started) {
  Rank rank;
  Model model(rank, config, DType::f64);
  model.initialize(rank, 3);
  GradientReducer reducer(rank, model.parameters(), replicas, {.bucket_bytes = 4096});
  LoaderSettings settings;
  settings.packing.seq_len = 24;
  settings.global_batch_size = rows;
  settings.prefetch = 0;
  Loader loader(small_corpus(), settings, {replicas.rank(), replicas.size()});
  const LoadedStep step = loader.next_step();
  reducer.begin_step(static_cast<int64_t>(step.microbatches.size()), 1);
  for (const HostBatch& host : step.microbatches) {
    const Microbatch microbatch = Microbatch::make(rank, host.tokens, host.targets, host.documents);
    Tape tape(rank);
    tape.set_parameter_hook([&](Parameter& parameter, int use) { reducer.contributed(parameter, use); });
    const Value loss = model.loss(tape, microbatch, {.recomputation = recomputation});
    const double weight = 1.0 / static_cast<double>(step.plan.valid);
    const Tensor gradient = Tensor::from<double>(rank, {1}, std::span(&weight, 1));
    tape.backward(std::span(&loss, 1), std::span(&gradient, 1));
  }
  *started = reducer.counters().started_before_finish;
  reducer.finish({MessageKind::gradients, 1, -1, -1});
  std::vector<Doubles> gradients;
  for (const Parameter& p : model.parameters()) gradients.push_back(p.gradients[0].to_vector<double>());
  return gradients;
}

BOOST_AUTO_TEST_CASE(replicas_of_a_model_train_as_one_process) {
  for (const bool tied : {false, true})
    for (const int ranks : {2, 3}) {
      ModelConfig config = small_config();
      config.tie_embeddings = tied;
      const Recomputation recomputation = tied == (ranks == 2) ? Recomputation::full : Recomputation::none;
      const int64_t rows = tied ? 2 : 5;  // 3 ranks of 2 microbatches: one has none
      int64_t ignored = 0;
      const auto alone = single_communicator();
      const std::vector<Doubles> expected = replica_gradients(*alone, config, recomputation, rows, &ignored);
      BOOST_TEST(ignored == 0);
      std::mutex mutex;
      std::map<int, std::vector<Doubles>> results;
      run_local(ranks, {}, [&](Communicator& replicas) {
        int64_t started = 0;
        const std::vector<Doubles> gradients = replica_gradients(replicas, config, recomputation, rows, &started);
        require(started > 0, "reduction overlaps with backward");
        const std::lock_guard lock(mutex);
        results[replicas.rank()] = gradients;
      });
      for (size_t p = 0; p < expected.size(); ++p) {
        for (int rank = 1; rank < ranks; ++rank) BOOST_TEST(same_bits(results[rank][p], results[0][p]));
        double largest = 0, error = 0;
        for (size_t i = 0; i < expected[p].size(); ++i) {
          largest = std::max(largest, std::abs(expected[p][i]));
          error = std::max(error, std::abs(results[0][p][i] - expected[p][i]));
        }
        BOOST_TEST(largest > 0);
        BOOST_TEST(error <= 1e-11 * largest);
      }
    }
}

}  // namespace
}  // namespace quire::test
