#include "parallel/tcp_sockets.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "runtime/error.h"

namespace quire {

namespace {

void set_up(int number) {
  ::fcntl(number, F_SETFL, ::fcntl(number, F_GETFL) | O_NONBLOCK);
  const int yes = 1;
  ::setsockopt(number, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  ::setsockopt(number, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
}

bool must_wait() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

std::string text_of(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address.ss_family == AF_INET6) {
    const auto& six = reinterpret_cast<const sockaddr_in6&>(address);
    if (IN6_IS_ADDR_V4MAPPED(&six.sin6_addr)) ::inet_ntop(AF_INET, six.sin6_addr.s6_addr + 12, text, sizeof text);
    else ::inet_ntop(AF_INET6, &six.sin6_addr, text, sizeof text);
  } else {
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, text, sizeof text);
  }
  return text;
}

/// 0, or the error.
int connect_within(const Socket& socket, const addrinfo& to, std::chrono::milliseconds limit) {
  if (::connect(socket.number(), to.ai_addr, to.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  pollfd entry{socket.number(), POLLOUT, 0};
  if (::poll(&entry, 1, static_cast<int>(limit.count())) <= 0) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(socket.number(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

}  // namespace

void Socket::close() {
  if (number_ >= 0) ::close(std::exchange(number_, -1));
}

Transfer read_some(const Socket& socket, void* into, int64_t bytes) {
  if (bytes == 0) return {};
  const ssize_t got = ::recv(socket.number(), into, static_cast<size_t>(bytes), 0);
  if (got > 0) return {got, false};
  return {0, got == 0 || !must_wait()};
}

Transfer write_some(const Socket& socket, const void* from, int64_t bytes) {
  if (bytes == 0) return {};
  const ssize_t put = ::send(socket.number(), from, static_cast<size_t>(bytes), MSG_NOSIGNAL);
  if (put >= 0) return {put, false};
  return {0, !must_wait()};
}

std::string to_string(const Address& address) {
  return address.host.find(':') == std::string::npos ? fmt::format("{}:{}", address.host, address.port) : fmt::format("[{}]:{}", address.host, address.port);
}

Socket listen_on(int port) {
  const auto refuse = [&](const char* call) {
    fail<CommunicationError>("start", "port {} can not be listened on: {}: {}; allowed: MASTER_PORT of one that is free", port, call, std::strerror(errno));
  };
  for (const int family : {AF_INET6, AF_INET}) {  // of the first both kinds of addresses, where the machine has them
    Socket socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!socket.open()) {
      if (family == AF_INET6) continue;
      refuse("socket");
    }
    set_up(socket.number());
    const int yes = 1, no = 0;
    ::setsockopt(socket.number(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    int status = 0;
    if (family == AF_INET6) {
      ::setsockopt(socket.number(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
      sockaddr_in6 address{};
      address.sin6_family = AF_INET6;
      address.sin6_port = htons(static_cast<uint16_t>(port));
      status = ::bind(socket.number(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
    } else {
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_port = htons(static_cast<uint16_t>(port));
      status = ::bind(socket.number(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
    }
    if (status != 0 && family == AF_INET6 && errno != EADDRINUSE && errno != EACCES) continue;
    if (status != 0) refuse("bind");
    if (::listen(socket.number(), SOMAXCONN) != 0) refuse("listen");
    return socket;
  }
  refuse("socket");
  return {};
}

int port_of(const Socket& listening) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  ::getsockname(listening.number(), reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

std::optional<Socket> accept_from(const Socket& listening) {
  Socket socket(::accept4(listening.number(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!socket.open()) return std::nullopt;
  set_up(socket.number());
  return socket;
}

std::string other_host(const Socket& connected) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  ::getpeername(connected.number(), reinterpret_cast<sockaddr*>(&address), &size);
  return text_of(address);
}

std::optional<Socket> connect_to(const Address& address, std::chrono::milliseconds limit, std::string& reason) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int status = ::getaddrinfo(address.host.c_str(), fmt::format("{}", address.port).c_str(), &hints, &found);
  if (status != 0) {
    reason = ::gai_strerror(status);
    return std::nullopt;
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> all(found, &::freeaddrinfo);
  for (const addrinfo* to = found; to != nullptr; to = to->ai_next) {
    Socket socket(::socket(to->ai_family, to->ai_socktype | SOCK_CLOEXEC, to->ai_protocol));
    if (!socket.open()) continue;
    set_up(socket.number());
    const int error = connect_within(socket, *to, limit);
    if (error == 0) return socket;
    reason = std::strerror(error);
  }
  return std::nullopt;
}

void wait_for(const Socket& socket, bool to_write, std::chrono::milliseconds limit) {
  pollfd entry{socket.number(), static_cast<short>(to_write ? POLLOUT : POLLIN), 0};
  ::poll(&entry, 1, static_cast<int>(limit.count()));
}

}  // namespace quire
