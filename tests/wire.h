// A communicator that passes everything on to another one, and lets a test see and change what is sent.
#pragma once
#include <functional>
#include <memory>

#include "parallel/communicator.h"

namespace quire::test {

/// Called in the rank's own thread. `other` is the peer's number in the group.
struct WireHooks {
  /// What is sent instead of `message`; the size must be the same unless another size is what is tested.
  std::function<Tensor(const Tensor& message, int other, const MessageLabel& label)> change;
  std::function<void(int other, const MessageLabel& label)> sent, posted;  ///< after a send (receive) was started
};

class Wire final : public Communicator {
 public:
  Wire(Communicator& inner, WireHooks hooks) : Communicator(inner.rank(), world_ranks_of(inner), 0), inner_(inner), hooks_(std::move(hooks)) {}

  std::string_view name() const override { return inner_.name(); }
  Request send(const Tensor& from, int to, const MessageLabel& label) override {
    const Request request = Communicator::send(hooks_.change ? hooks_.change(from, to, label) : from, to, label);
    if (hooks_.sent) hooks_.sent(to, label);
    return request;
  }
  Request receive(const Tensor& into, int from, const MessageLabel& label) override {
    const Request request = Communicator::receive(into, from, label);
    if (hooks_.posted) hooks_.posted(from, label);
    return request;
  }
  bool carries_device_memory() const override { return inner_.carries_device_memory(); }
  void connect(Rank& rank, std::span<const std::array<int, 2>> pairs) override { inner_.connect(rank, pairs); }
  void begin_together() override { inner_.begin_together(); }
  void end_together() override { inner_.end_together(); }
  WatchSeat* watch_seat() override { return inner_.watch_seat(); }
  void poll() override { inner_.poll(); }
  std::unique_ptr<Communicator> split(int colour) override {
    std::unique_ptr<Communicator> group = inner_.split(colour);
    auto wire = std::make_unique<Wire>(*group, hooks_);
    wire->owned_ = std::move(group);
    return wire;
  }
  void abort(const std::string& reason) override { inner_.abort(reason); }
  bool first_to_say(std::string_view text) override { return inner_.first_to_say(text); }

 protected:
  Request start_send(Message message) override { return Inner::send(inner_, std::move(message)); }
  Request start_receive(Message message) override { return Inner::receive(inner_, std::move(message)); }

 private:
  /// Reaches the protected functions of another communicator.
  struct Inner : Communicator {
    static Request send(Communicator& to, Message message) { return (to.*&Inner::start_send)(std::move(message)); }
    static Request receive(Communicator& from, Message message) { return (from.*&Inner::start_receive)(std::move(message)); }
  };
  static std::vector<int> world_ranks_of(const Communicator& inner) {
    std::vector<int> result;
    for (int r = 0; r < inner.size(); ++r) result.push_back(inner.world_rank(r));
    return result;
  }

  std::unique_ptr<Communicator> owned_;
  Communicator& inner_;
  WireHooks hooks_;
};

}  // namespace quire::test
