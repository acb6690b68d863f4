#include "parallel/tcp_start.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <random>
#include <sstream>
#include <thread>

#include "runtime/error.h"

namespace quire {

namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;
using Mark = std::array<char, 8>;
constexpr Mark hello_mark{'Q', 'u', 'i', 'r', 'e', 'H', 'i', '1'}, welcome_mark{'Q', 'u', 'i', 'r', 'e', 'O', 'k', '1'}, peer_mark{'Q', 'u', 'i', 'r', 'e', 'P', 'r', '1'};
constexpr uint32_t longest_welcome = 1 << 24;  ///< bytes
constexpr Milliseconds between_looks{50};
constexpr double longest_farewell = 5;  ///< seconds

struct Hello {
  Mark mark;
  uint32_t size, rank, port, spare;
};
struct Welcome {
  Mark mark;
  uint32_t refused, bytes;
};
struct PeerHello {
  Mark mark;
  uint64_t job;
  uint32_t rank, spare;
};

class Deadline {
 public:
  explicit Deadline(double seconds) : seconds_(seconds), end_(Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::min(seconds, 1e8)))) {}
  bool over() const { return Clock::now() >= end_; }
  double seconds() const { return seconds_; }

 private:
  double seconds_;
  Clock::time_point end_;
};

/// All of the bytes; false where the other side goes away or the time is over first.
bool read_all(const Socket& socket, void* into, int64_t bytes, const Deadline& deadline) {
  for (int64_t at = 0; at < bytes;) {
    const Transfer got = read_some(socket, static_cast<char*>(into) + at, bytes - at);
    if (got.closed || deadline.over()) return false;
    at += got.bytes;
    if (got.bytes == 0) wait_for(socket, false, between_looks);
  }
  return true;
}
bool write_all(const Socket& socket, const void* from, int64_t bytes, const Deadline& deadline) {
  for (int64_t at = 0; at < bytes;) {
    const Transfer put = write_some(socket, static_cast<const char*>(from) + at, bytes - at);
    if (put.closed || deadline.over()) return false;
    at += put.bytes;
    if (put.bytes == 0) wait_for(socket, true, between_looks);
  }
  return true;
}

/// Connections that have been accepted and have not said yet who they are; calls `take` with those that say an `Introduction`.
template <class Introduction>
class Door {
 public:
  explicit Door(const Socket& listening) : listening_(listening) {}
  void look(const std::function<void(Socket, const Introduction&)>& take) {
    std::vector<pollfd> entries{{listening_.number(), POLLIN, 0}};
    for (const Guest& guest : guests_) entries.push_back({guest.socket.number(), POLLIN, 0});
    ::poll(entries.data(), entries.size(), static_cast<int>(between_looks.count()));
    while (std::optional<Socket> socket = accept_from(listening_)) guests_.push_back({std::move(*socket), {}, 0});
    for (Guest& guest : guests_) {
      const Transfer got = read_some(guest.socket, reinterpret_cast<char*>(&guest.said) + guest.bytes, static_cast<int64_t>(sizeof guest.said) - guest.bytes);
      guest.bytes += got.bytes;
      // The mark is looked at as soon as it is there: a stranger may say less than a rank does.
      const bool strange = std::memcmp(&guest.said, &mark, static_cast<size_t>(std::min<int64_t>(guest.bytes, sizeof mark))) != 0;
      if (strange || got.closed) {
        ++strangers_;
        guest.socket.close();
      } else if (guest.bytes == sizeof guest.said) {
        take(std::move(guest.socket), guest.said);
      }
    }
    std::erase_if(guests_, [](const Guest& guest) { return !guest.socket.open(); });
  }
  /// ` (1 connection said something else)`
  std::string about_strangers() const {
    const size_t count = strangers_ + guests_.size();
    return count == 0 ? "" : fmt::format(" ({} connection{} to the port did not speak as a rank does)", count, count == 1 ? "" : "s");
  }

 private:
  static constexpr Mark mark = std::is_same_v<Introduction, Hello> ? hello_mark : peer_mark;
  struct Guest {
    Socket socket;
    Introduction said;
    int64_t bytes;
  };
  const Socket& listening_;
  std::vector<Guest> guests_;
  size_t strangers_ = 0;
};

std::string missing_ranks(const std::vector<Socket>& peers, int first, int own) {
  std::string text;
  for (int rank = first; rank < static_cast<int>(peers.size()); ++rank)
    if (rank != own && !peers[static_cast<size_t>(rank)].open()) text += fmt::format("{}{}", text.empty() ? "" : ", ", rank);
  return text;
}

/// What all hear when all are there: the job's number, then a line of address and port for each rank.
struct Guide {
  uint64_t job = 0;
  std::vector<Address> addresses;
  std::string text() const {
    std::string result = fmt::format("{}\n", job);
    for (const Address& address : addresses) result += fmt::format("{} {}\n", address.host.empty() ? "-" : address.host, address.port);
    return result;
  }
  static Guide of(const std::string& text) {
    Guide guide;
    std::istringstream words(text);
    words >> guide.job;
    for (Address address; words >> address.host >> address.port;) guide.addresses.push_back(address);
    return guide;
  }
};

void answer(const Socket& socket, bool refused, const std::string& text, const Deadline& deadline) {
  const Welcome welcome{welcome_mark, refused ? 1u : 0u, static_cast<uint32_t>(text.size())};
  if (write_all(socket, &welcome, sizeof welcome, deadline)) write_all(socket, text.data(), static_cast<int64_t>(text.size()), deadline);
}

/// Why a rank can not be one of these; "" where it can.
std::string misfit(const Hello& hello, const std::vector<Socket>& peers) {
  if (hello.size != peers.size()) return fmt::format("rank {} was started as one of {} ranks (WORLD_SIZE), rank 0 as one of {}", hello.rank, hello.size, peers.size());
  if (hello.rank == 0 || hello.rank >= peers.size())
    return fmt::format("a process was started as rank {} (RANK) beside rank 0; allowed: 1 to {}", hello.rank, peers.size() - 1);
  if (peers[hello.rank].open()) return fmt::format("two processes were started as rank {} (RANK)", hello.rank);
  return {};
}

/// Rank 0: hears everybody.
std::vector<Socket> gather_ranks(const Socket& listening, int size, const Deadline& deadline) {
  std::vector<Socket> peers(static_cast<size_t>(size));
  Guide guide;
  guide.job = std::random_device()() * uint64_t{0x100000001} + std::random_device()();
  guide.addresses.resize(peers.size());
  int come = 1, refused = 0;
  std::string problem;
  Door<Hello> door(listening);
  const auto take = [&](Socket socket, const Hello& hello) {
    if (problem.empty()) problem = misfit(hello, peers);
    if (!problem.empty()) {
      ++refused;
      answer(socket, true, problem, Deadline(2));
      return;
    }
    guide.addresses[hello.rank] = {other_host(socket), static_cast<int>(hello.port)};
    peers[hello.rank] = std::move(socket);
    ++come;
  };
  while (come < size && problem.empty()) {
    door.look(take);
    if (deadline.over()) problem = fmt::format("rank{} {} did not come within {:.3g} s: {} of {} ranks are here{}", size - come == 1 ? "" : "s", missing_ranks(peers, 1, 0), deadline.seconds(), come, size, door.about_strangers());
  }
  for (const Socket& peer : peers)
    if (peer.open()) answer(peer, !problem.empty(), problem.empty() ? guide.text() : problem, problem.empty() ? deadline : Deadline(2));
  if (refused > 0)  // who comes a little later hears it as well
    for (const Deadline last(std::min(longest_farewell, deadline.seconds())); come - 1 + refused < size - 1 && !last.over();) door.look(take);
  if (!problem.empty()) fail<CommunicationError>("start", "{}", problem);
  return peers;
}

/// Another rank: what rank 0 says, and the connection to it.
struct Welcomed {
  Socket socket;
  Guide guide;
};
std::optional<Welcomed> introduce(const Address& master, const Meeting& meeting, int port, const Deadline& deadline, std::string& reason) {
  std::optional<Socket> socket = connect_to(master, Milliseconds(1000), reason);
  if (!socket) return std::nullopt;
  const Hello hello{hello_mark, static_cast<uint32_t>(meeting.size), static_cast<uint32_t>(meeting.rank), static_cast<uint32_t>(port), 0};
  Welcome welcome{};
  reason = "the connection was closed";
  if (!write_all(*socket, &hello, sizeof hello, deadline) || !read_all(*socket, &welcome, sizeof welcome.mark, deadline)) return std::nullopt;
  reason = "what answers there is no rank 0";
  if (welcome.mark != welcome_mark) return std::nullopt;
  if (!read_all(*socket, reinterpret_cast<char*>(&welcome) + sizeof welcome.mark, sizeof welcome - sizeof welcome.mark, deadline) || welcome.bytes > longest_welcome) return std::nullopt;
  std::string text(welcome.bytes, '\0');
  reason = "the connection was closed";
  if (!read_all(*socket, text.data(), welcome.bytes, deadline)) return std::nullopt;
  if (welcome.refused != 0) fail<CommunicationError>("start", "{}", text);
  Guide guide = Guide::of(text);
  if (static_cast<int>(guide.addresses.size()) != meeting.size) return std::nullopt;
  return Welcomed{std::move(*socket), std::move(guide)};
}

/// Where rank 0 may be: as the file says now.
std::vector<Address> addresses_in(const std::string& file) {
  std::ifstream text(file);
  std::vector<Address> result;
  for (Address address; text >> address.host >> address.port;) result.push_back(address);
  return result;
}

void write_address(const std::string& file, int port) {
  char name[256] = "localhost";
  ::gethostname(name, sizeof name - 1);
  const std::string beside = fmt::format("{}.{}", file, ::getpid());
  std::ofstream text(beside);
  text << name << ' ' << port << "\nlocalhost " << port << '\n';
  text.close();
  if (!text || std::rename(beside.c_str(), file.c_str()) != 0) fail<FileError>("start", "{} can not be written: {}", file, std::strerror(errno));
}

std::vector<Socket> meet_as_member(const Meeting& meeting) {
  const Deadline deadline(meeting.limit_seconds + std::min(5.0, meeting.limit_seconds));  // rank 0 says what is wrong before the others are tired of it
  const Socket listening = listen_on(0);
  std::optional<Welcomed> welcomed;
  std::string reason = "nothing was there", tried = meeting.file;
  while (!welcomed) {
    for (const Address& master : meeting.file.empty() ? std::vector{meeting.master} : addresses_in(meeting.file)) {
      tried = to_string(master);
      if (!welcomed) welcomed = introduce(master, meeting, port_of(listening), deadline, reason);
    }
    if (welcomed) break;
    if (deadline.over()) fail<CommunicationError>("start", "rank {} did not reach rank 0 at {} within {:.3g} s: {}", meeting.rank, tried, deadline.seconds(), reason);
    std::this_thread::sleep_for(between_looks);
  }
  std::vector<Socket> peers(static_cast<size_t>(meeting.size));
  peers[0] = std::move(welcomed->socket);
  const PeerHello own{peer_mark, welcomed->guide.job, static_cast<uint32_t>(meeting.rank), 0};
  for (int other = 1; other < meeting.rank; ++other) {
    const Address& address = welcomed->guide.addresses[static_cast<size_t>(other)];
    std::optional<Socket> socket = connect_to(address, Milliseconds(10'000), reason);
    if (!socket || !write_all(*socket, &own, sizeof own, deadline))
      fail<CommunicationError>("start", "rank {} does not reach rank {} at {}: {}", meeting.rank, other, to_string(address), reason);
    peers[static_cast<size_t>(other)] = std::move(*socket);
  }
  Door<PeerHello> door(listening);
  for (std::string missing; !(missing = missing_ranks(peers, meeting.rank + 1, meeting.rank)).empty();) {
    door.look([&](Socket socket, const PeerHello& hello) {
      if (hello.job == own.job && hello.rank > own.rank && hello.rank < peers.size()) peers[hello.rank] = std::move(socket);
    });
    if (deadline.over()) fail<CommunicationError>("start", "rank {} has not connected to rank {} within {:.3g} s", missing, meeting.rank, deadline.seconds());
  }
  return peers;
}

int number_in(const char* variable, int least, int most) {
  const char* text = std::getenv(variable);
  if (text == nullptr) fail<ConfigError>("start", "{} is not set; needed beside RANK and WORLD_SIZE, as torchrun sets them", variable);
  const std::string_view view(text);
  int number = 0;
  const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), number);
  if (error != std::errc() || end != view.data() + view.size() || number < least || number > most)
    fail<ConfigError>("start", "{} is '{}'; allowed: {} to {}", variable, text, least, most);
  return number;
}

}  // namespace

Meeting meeting_of_environment() {
  Meeting meeting;
  meeting.size = number_in("WORLD_SIZE", 1, 1 << 20);
  meeting.rank = number_in("RANK", 0, meeting.size - 1);
  if (meeting.size == 1) return meeting;
  if (const char* file = std::getenv("QUIRE_MASTER_FILE"); file != nullptr && *file != '\0') {
    meeting.file = file;
    return meeting;
  }
  const char* host = std::getenv("MASTER_ADDR");
  if (host == nullptr || *host == '\0') fail<ConfigError>("start", "RANK and WORLD_SIZE are set, MASTER_ADDR is not; needed: MASTER_ADDR and MASTER_PORT, or QUIRE_MASTER_FILE");
  meeting.master.host = host;
  meeting.master.port = number_in("MASTER_PORT", 1, 65535);
  // torchrun's agent then listens at the port itself.
  if (const char* agent = std::getenv("TORCHELASTIC_USE_AGENT_STORE"); agent != nullptr && std::string_view(agent) == "True") ++meeting.master.port;
  return meeting;
}

std::vector<Socket> meet(const Meeting& meeting) {
  if (meeting.size == 1) return std::vector<Socket>(1);
  if (meeting.rank != 0) return meet_as_member(meeting);
  const Socket listening = listen_on(meeting.file.empty() ? meeting.master.port : 0);
  if (!meeting.file.empty()) write_address(meeting.file, port_of(listening));
  std::vector<Socket> peers = gather_ranks(listening, meeting.size, Deadline(meeting.limit_seconds));
  if (!meeting.file.empty()) ::unlink(meeting.file.c_str());
  return peers;
}

}  // namespace quire
