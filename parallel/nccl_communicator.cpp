// Tensors of CUDA devices between ranks: see nccl.h for the order of messages.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>

#include "parallel/nccl.h"
#include "parallel/nccl_job.h"
#include "runtime/error.h"

namespace quire {

namespace {

constexpr int channel_blocks = 4, round_blocks = 8;  ///< thread blocks that one communicator may occupy, of more than a hundred that a device runs at a time

using Pair = std::array<int, 2>;

/// What a rank says when a group connects: the identifiers that it made, in the order in which all ranks go through pairs, or why it can not.
struct Greeting {
  std::string problem;
  std::vector<ncclUniqueId> ids;
};

std::string text_of(const Greeting& greeting) {
  if (!greeting.problem.empty()) return "!" + greeting.problem;
  std::string text = "+";
  for (const ncclUniqueId& id : greeting.ids) text.append(id.internal, sizeof id.internal);
  return text;
}

Greeting greeting_of(const std::string& text) {
  Greeting greeting;
  if (text.empty() || text[0] != '+') return {text.empty() ? "no answer" : text.substr(1), {}};
  for (size_t at = 1; at + sizeof(ncclUniqueId) <= text.size(); at += sizeof(ncclUniqueId)) std::memcpy(greeting.ids.emplace_back().internal, text.data() + at, sizeof(ncclUniqueId));
  return greeting;
}

/// An operation of one or of several messages of device memory.
class NcclOperation final : public Request::Operation {
 public:
  NcclOperation(std::shared_ptr<NcclJob> job, std::shared_ptr<NcclFlight> flight) : job_(std::move(job)), flight_(std::move(flight)) {}
  bool done() override {
    job_->check();
    return job_->is_over(*flight_);
  }
  void wait() override {
    job_->check();
    job_->await(*flight_);
  }

 private:
  const std::shared_ptr<NcclJob> job_;
  const std::shared_ptr<NcclFlight> flight_;
};

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(Communicator& control, std::unique_ptr<Communicator> owned, std::shared_ptr<NcclJob> job)
      : Communicator(control.rank(), world_ranks_of(control), control.watchdog()), owned_(std::move(owned)), control_(control), job_(std::move(job)),
        exceptions_when_made_(std::uncaught_exceptions()), name_(fmt::format("{} and nccl", control.name())) {}

  ~NcclCommunicator() override {
    if (std::uncaught_exceptions() > exceptions_when_made_ && !job_->failed())
      job_->fail_with(std::make_exception_ptr(AbortedError("[nccl] an error has ended this rank's work")));
    job_->finish(this);
    for (auto& [pair, link] : channels_) job_->remove(link);
    if (round_link_) job_->remove(round_link_);
  }

  /// Of a group whose devices are not connected, that of the host's messages.
  std::string_view name() const override { return round_link_ ? std::string_view(name_) : control_.name(); }
  bool carries_device_memory() const override { return true; }
  WatchSeat* watch_seat() override { return control_.watch_seat(); }

  void connect(Rank& rank, std::span<const Pair> pairs) override {
    if (rank.accelerator() == nullptr || size_ == 1) return;
    job_->check();
    job_->use(rank.shared_accelerator());
    std::vector<Pair> missing;
    for (const Pair& pair : pairs) {
      if (std::min(pair[0], pair[1]) < 0 || std::max(pair[0], pair[1]) >= size_ || pair[0] == pair[1])
        fail<StateError>("nccl", "messages from rank {} to rank {} of a group of {}", pair[0], pair[1], size_);
      if (known_pairs_.insert(pair).second) missing.push_back(pair);
    }
    if (missing.empty() && round_link_) return;
    make_links(rank, missing);
  }

  void begin_together() override {
    round_ = std::make_shared<NcclFlight>();
    control_.begin_together();
  }

  void end_together() override {
    control_.end_together();
    const std::shared_ptr<NcclFlight> round = std::exchange(round_, nullptr);
    if (round == nullptr || round->parts.empty()) return;
    job_->launch(*round_link_, round);
  }

  void poll() override {
    control_.poll();
    check();
  }

  std::unique_ptr<Communicator> split(int colour) override {
    std::unique_ptr<Communicator> control = control_.split(colour);
    Communicator& group = *control;
    group.set_watchdog(watchdog_seconds_);
    return std::make_unique<NcclCommunicator>(group, std::move(control), job_);
  }

  void abort(const std::string& reason) override {
    job_->fail_with(std::make_exception_ptr(AbortedError(fmt::format("[communicator] the ranks were ended: {}", reason))));
    control_.abort(reason);
  }
  bool first_to_say(std::string_view text) override { return control_.first_to_say(text); }

 private:
  /// Reaches the protected functions of another communicator.
  struct Inner : Communicator {
    static Request send(Communicator& to, Message message) { return (to.*&Inner::start_send)(std::move(message)); }
    static Request receive(Communicator& from, Message message) { return (from.*&Inner::start_receive)(std::move(message)); }
  };
  static std::vector<int> world_ranks_of(const Communicator& control) {
    std::vector<int> result;
    for (int r = 0; r < control.size(); ++r) result.push_back(control.world_rank(r));
    return result;
  }

  Request start_send(Message message) override { return start(std::move(message), true); }
  Request start_receive(Message message) override { return start(std::move(message), false); }

  void check() {
    if (job_->failed()) control_.poll();  // which knows why the ranks were ended, if they were
    job_->check();
  }

  Request start(Message message, bool sends) {
    check();
    if (!message.on_device) {
      control_.set_watchdog(watchdog_seconds_);
      return sends ? Inner::send(control_, std::move(message)) : Inner::receive(control_, std::move(message));
    }
    job_->device();
    const Pair pair = sends ? Pair{rank_, message.other} : Pair{message.other, rank_};
    const auto channel = channels_.find(pair);
    if (round_ == nullptr && channel == channels_.end())
      fail<StateError>("nccl", "{} of device memory from rank {} to rank {} without `connect` for this pair", to_string(message.label), pair[0], pair[1]);
    if (round_ != nullptr && round_link_ == nullptr) fail<StateError>("nccl", "{} of device memory within `together` without `connect`", to_string(message.label));
    if (message.bytes == 0) return {};
    const std::shared_ptr<NcclFlight> flight = round_ != nullptr ? round_ : std::make_shared<NcclFlight>();
    const bool first = flight->parts.empty();
    // Of a channel's two ranks the sender is 0.
    flight->parts.push_back({message.data, message.bytes, round_ != nullptr ? message.other : sends ? 1 : 0, sends});
    flight->label = message.label;
    flight->waits = sends ? Watch::Waits::to_send : Watch::Waits::to_receive;
    flight->other = first ? world_rank(message.other) : -1;
    flight->watchdog_seconds = watchdog_seconds_;
    flight->group = this;
    if (message.keep) flight->keep.push_back(std::move(message.keep));
    if (round_ == nullptr) job_->launch(*channel->second, flight);
    return Request(std::make_shared<NcclOperation>(job_, flight));
  }

  void make_links(Rank& rank, const std::vector<Pair>& missing) {
    const bool round = round_link_ == nullptr;
    const std::vector<Greeting> greetings = greet(missing, round);
    std::vector<size_t> used(greetings.size(), 0);
    const auto next_id = [&](int of) { return greetings[static_cast<size_t>(of)].ids.at(used[static_cast<size_t>(of)]++); };
    std::vector<Making> makings;
    if (round) {
      round_link_ = job_->make_link(size_, job_->rounds());
      makings.push_back({round_link_, next_id(0), rank_, round_blocks});
    }
    for (const Pair& pair : missing) {
      const ncclUniqueId id = next_id(pair[0]);
      if (pair[0] != rank_ && pair[1] != rank_) continue;
      const std::shared_ptr<NcclLink> link = channels_[pair] = job_->make_link(2, nullptr);
      makings.push_back({link, id, pair[0] == rank_ ? 0 : 1, channel_blocks});
    }
    make_communicators(makings);
    warm_up(rank, makings);
  }

  /// What all ranks say. Throws where one can not go on, on every rank.
  std::vector<Greeting> greet(const std::vector<Pair>& missing, bool round) {
    Greeting mine;
    try {
      const auto add_id = [&] { check_nccl(nccl().ncclGetUniqueId(&mine.ids.emplace_back()), "ncclGetUniqueId"); };
      if (round && rank_ == 0) add_id();
      for (const Pair& pair : missing)
        if (pair[0] == rank_) add_id();
    } catch (const Error& error) {
      mine.problem = error.what();
    }
    control_.set_watchdog(watchdog_seconds_);
    std::vector<Greeting> greetings;
    for (const std::string& text : control_.gather_texts(text_of(mine), {.purpose = "connecting devices"})) greetings.push_back(greeting_of(text));
    if (!mine.problem.empty()) throw UnsupportedError(mine.problem);
    for (int other = 0; other < size_; ++other)
      if (const std::string& problem = greetings[static_cast<size_t>(other)].problem; !problem.empty())
        fail<AbortedError>("nccl", "rank {} can not connect its device: {}", world_rank(other), problem);
    return greetings;
  }

  struct Making {
    std::shared_ptr<NcclLink> link;
    ncclUniqueId id;
    int rank, blocks;
  };

  void make_communicators(const std::vector<Making>& makings) {
    job_->device().stream();
    std::vector<ncclConfig_t> configs(makings.size(), ncclConfig_t NCCL_CONFIG_INITIALIZER);
    std::vector<ncclComm_t> made(makings.size(), nullptr);  // NCCL writes there until the group has ended; the watching thread sees what links have taken
    const auto hand_over = [&] {
      for (size_t i = 0; i < makings.size(); ++i) makings[i].link->take(made[i]);
    };
    try {
      NcclGroup group;
      for (size_t i = 0; i < makings.size(); ++i) {
        const Making& each = makings[i];
        configs[i].blocking = 1;
        configs[i].minCTAs = 1;
        configs[i].maxCTAs = each.blocks;
        check_nccl(nccl().ncclCommInitRankConfig(&made[i], each.link->size(), each.id, each.rank, &configs[i]), "ncclCommInitRankConfig");
        each.link->take(made[i]);  // an error elsewhere can end it while it waits for the other ranks
      }
      group.end();
    } catch (...) {
      hand_over();
      throw;
    }
    hand_over();
  }

  /// NCCL connects two ranks with their first message, and the host waits for it: here, where all ranks are, and not later.
  void warm_up(Rank& rank, const std::vector<Making>& makings) {
    const int64_t piece = 256, pieces = 2 * size_;
    const Tensor memory = Tensor::empty(rank, {pieces * piece / 8}, DType::i64, Category::other);
    std::byte* const data = static_cast<std::byte*>(memory.raw());
    fill_zero(rank, memory);
    for (const Making& each : makings) {
      const auto flight = std::make_shared<NcclFlight>();
      for (int peer = 0; peer < each.link->size(); ++peer) {
        if (peer == each.rank) continue;
        const bool channel = each.blocks == channel_blocks;
        if (!channel || each.rank == 0) flight->parts.push_back({data + 2 * peer * piece, 1, peer, true});
        if (!channel || each.rank == 1) flight->parts.push_back({data + (2 * peer + 1) * piece, 1, peer, false});
      }
      flight->label = {.purpose = "connecting devices"};
      flight->watchdog_seconds = watchdog_seconds_;
      flight->group = this;
      job_->launch(*each.link, flight);
      job_->await(*flight);
    }
    job_->finish(this);
    job_->check();
  }

  std::unique_ptr<Communicator> owned_;
  Communicator& control_;
  std::shared_ptr<NcclJob> job_;
  const int exceptions_when_made_;
  const std::string name_;
  std::set<Pair> known_pairs_;                         ///< that `connect` was called for
  std::map<Pair, std::shared_ptr<NcclLink>> channels_;  ///< this rank's
  std::shared_ptr<NcclLink> round_link_;
  std::shared_ptr<NcclFlight> round_;                  ///< what is being posted in `together`
};

}  // namespace

bool nccl_is_built() { return true; }

std::string nccl_version() {
  int version = 0;
  check_nccl(nccl().ncclGetVersion(&version), "ncclGetVersion");
  return nccl_version_text(version);
}

std::unique_ptr<Communicator> with_device_memory(std::unique_ptr<Communicator> control) {
  if (control->size() == 1) return control;
  Communicator& group = *control;
  return std::make_unique<NcclCommunicator>(group, std::move(control), std::make_shared<NcclJob>(group.watch_seat()));
}

void run_local_on_devices(int ranks, const CommunicatorOptions& options, const std::function<void(Communicator& world)>& body) {
  prepare_cuda_connections();
  run_local(ranks, options, [&](Communicator& control) {
    NcclCommunicator world(control, nullptr, std::make_shared<NcclJob>(control.watch_seat()));
    body(world);
  });
}

void prepare_cuda_connections() { ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); }

}  // namespace quire
