#include "parallel/communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "runtime/error.h"

namespace quire {
namespace {

/// A group of one rank.
class SingleCommunicator final : public Communicator {
 public:
  SingleCommunicator() : Communicator(0, {0}, 0) {}
  std::string_view name() const override { return "single"; }
  void poll() override { check(); }
  std::unique_ptr<Communicator> split(int) override { return single_communicator(); }
  void abort(const std::string& reason) override {
    if (aborted_.empty()) aborted_ = reason.empty() ? "aborted" : reason;
  }
  bool first_to_say(std::string_view text) override { return said_.emplace(text).second; }

 private:
  void check() const {
    if (!aborted_.empty()) fail<AbortedError>("communicator", "ended: {}", aborted_);
  }
  // Never reached: a message to another rank than the group's is refused before.
  Request start_send(Message) override { return {}; }
  Request start_receive(Message) override { return {}; }

  std::string aborted_;
  std::set<std::string, std::less<>> said_;
};

}  // namespace

std::string_view name_of(MessageKind kind) {
  switch (kind) {
    case MessageKind::boundaries: return "boundaries";
    case MessageKind::activations: return "activations";
    case MessageKind::activation_gradients: return "activation_gradients";
    case MessageKind::tied_gradients: return "tied_gradients";
    case MessageKind::keys_values: return "keys_and_values";
    case MessageKind::key_value_gradients: return "key_and_value_gradients";
    case MessageKind::head_parts: return "head_parts";
    case MessageKind::gradients: return "gradients";
    case MessageKind::control: return "control";
  }
  return "?";
}

std::string to_string(const MessageLabel& label) {
  std::string text = label.kind == MessageKind::control ? "control messages" : std::string(name_of(label.kind));
  std::replace(text.begin(), text.end(), '_', ' ');
  if (label.purpose[0] != '\0') text += fmt::format(" ({})", label.purpose);
  const char* separator = " for ";
  const auto add = [&](const char* name, int64_t value) {
    if (value < 0) return;
    text += fmt::format("{}{} {}", separator, name, value);
    separator = ", ";
  };
  add("stage", label.stage);
  add("microbatch", label.microbatch);
  add("step", label.step);
  return text;
}

MessageLabel with_purpose(MessageLabel label, const char* purpose) {
  if (label.purpose[0] == '\0') label.purpose = purpose;
  return label;
}

void Communicator::check_message(std::string_view what, const Tensor& tensor, int other) const {
  if (!tensor.defined()) fail<StateError>("communicator", "{}: the tensor has no values", what);
  if (tensor.device().kind != DeviceKind::cpu && !carries_device_memory())
    fail<StateError>("communicator", "{}: the tensor lies on {}; '{}' carries host memory", what, to_string(tensor.device()), name());
  if (!tensor.is_contiguous()) fail<ShapeError>("communicator", "{}: {} is not contiguous", what, describe(tensor));
  if (size_ == 1) fail<StateError>("communicator", "{}: a group of one rank has nobody to talk to", what);
  if (other < 0 || other >= size_ || other == rank_)
    fail<StateError>("communicator", "{}: rank {} is not one of the others of {} ranks (this is rank {})", what, other, size_, rank_);
}

Request Communicator::send_message(Message message) {
  TrafficCounters::Entry& entry = traffic_.sent[static_cast<size_t>(message.label.kind)];
  const int64_t bytes = message.bytes;
  Request request = start_send(std::move(message));
  ++entry.messages;
  entry.bytes += bytes;
  return request;
}

Request Communicator::send(const Tensor& from, int to, const MessageLabel& label) {
  check_message("send", from, to);
  return send_message({static_cast<std::byte*>(from.raw()), from.bytes(), to, label, std::make_shared<const Tensor>(from), !from.on_host()});
}

Request Communicator::receive(const Tensor& into, int from, const MessageLabel& label) {
  check_message("receive", into, from);
  return start_receive({static_cast<std::byte*>(into.raw()), into.bytes(), from, label, std::make_shared<const Tensor>(into), !into.on_host()});
}

void Communicator::connect(Rank&, std::span<const std::array<int, 2>>) {}

std::vector<std::byte> Communicator::exchange(std::span<const std::byte> mine, const MessageLabel& label) {
  const int64_t bytes = static_cast<int64_t>(mine.size());
  const auto all = std::make_shared<std::vector<std::byte>>(mine.size() * static_cast<size_t>(size_));
  std::byte* const own = all->data() + rank_ * bytes;
  std::copy(mine.begin(), mine.end(), own);
  if (bytes == 0) return *all;
  std::vector<Request> requests;
  for (int other = 0; other < size_; ++other)
    if (other != rank_) requests.push_back(start_receive({all->data() + other * bytes, bytes, other, label, all}));
  for (int other = 0; other < size_; ++other)
    if (other != rank_) requests.push_back(send_message({own, bytes, other, label, all}));
  for (const Request& request : requests) request.wait();
  return std::move(*all);
}

std::vector<int> Communicator::ranks_of_colour(int colour) {
  const int64_t mine = colour;
  const std::vector<std::byte> all = exchange(std::as_bytes(std::span(&mine, 1)), {.purpose = "split"});
  std::vector<int> members;
  for (int other = 0; other < size_; ++other) {
    int64_t its = 0;
    std::memcpy(&its, all.data() + static_cast<size_t>(other) * sizeof its, sizeof its);
    if (its == mine) members.push_back(other);
  }
  return members;
}

void Communicator::barrier(const MessageLabel& label) {
  // Dissemination: after round k a rank knows that the 2^(k+1) ranks up to itself have come.
  const MessageLabel named = with_purpose(label, "barrier");
  for (int distance = 1; distance < size_; distance *= 2) {
    const Request received = start_receive({nullptr, 0, (rank_ - distance + size_) % size_, named, nullptr});
    const Request sent = send_message({nullptr, 0, (rank_ + distance) % size_, named, nullptr});
    received.wait();
    sent.wait();
  }
}

std::vector<std::string> Communicator::gather_texts(const std::string& mine, const MessageLabel& label) {
  const MessageLabel named = with_purpose(label, "texts");
  const int64_t length = static_cast<int64_t>(mine.size());
  const std::vector<std::byte> lengths = exchange(std::as_bytes(std::span(&length, 1)), named);
  const auto texts = std::make_shared<std::vector<std::string>>(static_cast<size_t>(size_));
  std::vector<Request> requests;
  for (int other = 0; other < size_; ++other) {
    std::string& text = (*texts)[static_cast<size_t>(other)];
    int64_t its = 0;
    std::memcpy(&its, lengths.data() + static_cast<size_t>(other) * sizeof its, sizeof its);
    text.resize(static_cast<size_t>(its));
    if (other == rank_) text = mine;
    else if (its > 0) requests.push_back(start_receive({reinterpret_cast<std::byte*>(text.data()), its, other, named, texts}));
  }
  std::string& own = (*texts)[static_cast<size_t>(rank_)];
  for (int other = 0; other < size_; ++other)
    if (other != rank_ && length > 0) requests.push_back(send_message({reinterpret_cast<std::byte*>(own.data()), length, other, named, texts}));
  for (const Request& request : requests) request.wait();
  return std::move(*texts);
}

int64_t Communicator::agree_on_largest(int64_t value, const MessageLabel& label) {
  const std::vector<std::byte> all = exchange(std::as_bytes(std::span(&value, 1)), with_purpose(label, "agreement"));
  for (int other = 0; other < size_; ++other) {
    int64_t its = 0;
    std::memcpy(&its, all.data() + static_cast<size_t>(other) * sizeof its, sizeof its);
    value = std::max(value, its);
  }
  return value;
}

std::unique_ptr<Communicator> single_communicator() { return std::make_unique<SingleCommunicator>(); }

}  // namespace quire
