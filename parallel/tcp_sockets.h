// Sockets of this process: owned, never blocking, errors in the house form.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace quire {

class Socket {
 public:
  Socket() = default;
  explicit Socket(int number) : number_(number) {}
  ~Socket() { close(); }
  Socket(Socket&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    if (this != &other) {
      close();
      number_ = std::exchange(other.number_, -1);
    }
    return *this;
  }
  bool open() const { return number_ >= 0; }
  int number() const { return number_; }
  void close();

 private:
  int number_ = -1;
};

/// What a read or a write came to.
struct Transfer {
  int64_t bytes = 0;  ///< moved; 0 where it would have to wait
  bool closed = false;  ///< the other side is gone
};
Transfer read_some(const Socket& socket, void* into, int64_t bytes);
Transfer write_some(const Socket& socket, const void* from, int64_t bytes);

struct Address {
  std::string host;  ///< a name or number
  int port = 0;
};
std::string to_string(const Address& address);

/// Listens on all interfaces. Port 0: one that is free. Throws CommunicationError (port, reason) where it can not.
Socket listen_on(int port);
int port_of(const Socket& listening);
/// A connection that somebody has asked for; none where nobody has.
std::optional<Socket> accept_from(const Socket& listening);
/// The number of the other end, or of this one, as text.
std::string other_host(const Socket& connected);
/// Tries once, for so long. Nothing and the reason where it does not succeed.
std::optional<Socket> connect_to(const Address& address, std::chrono::milliseconds limit, std::string& reason);

/// Waits until the socket can be read (or written) or the time is over.
void wait_for(const Socket& socket, bool to_write, std::chrono::milliseconds limit);

}  // namespace quire
