#include "run/launch_link.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "runtime/error.h"

namespace quire {
namespace {

constexpr int patience_seconds = 60;  // a launcher that lives answers at once

[[noreturn]] void refuse_link(const std::string& path, const char* what) {
  const int reason = errno;
  fail<FileError>(path, "{}: {}", what, std::strerror(reason));
}

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) fail<FileError>(path, "the path is longer than the {} characters of a socket's name", sizeof address.sun_path - 1);
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

/// Two descriptors as a message's ancillary data.
struct Descriptors {
  alignas(cmsghdr) char buffer[CMSG_SPACE(2 * sizeof(int))] = {};
  char byte = 0;
  iovec text{&byte, 1};
  msghdr message{};

  Descriptors() {
    message.msg_iov = &text;
    message.msg_iovlen = 1;
    message.msg_control = buffer;
    message.msg_controllen = sizeof buffer;
  }
};

bool send_outputs(int descriptor) {
  Descriptors carrier;
  cmsghdr* const header = CMSG_FIRSTHDR(&carrier.message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(2 * sizeof(int));
  const int outputs[2] = {STDOUT_FILENO, STDERR_FILENO};
  std::memcpy(CMSG_DATA(header), outputs, sizeof outputs);
  return ::sendmsg(descriptor, &carrier.message, MSG_NOSIGNAL) == 1;
}

bool receive_outputs(int descriptor) {
  Descriptors carrier;
  ssize_t count = 0;
  while ((count = ::recvmsg(descriptor, &carrier.message, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR) {
  }
  const cmsghdr* const header = count == 1 ? CMSG_FIRSTHDR(&carrier.message) : nullptr;
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS || header->cmsg_len != CMSG_LEN(2 * sizeof(int))) return false;
  int outputs[2];
  std::memcpy(outputs, CMSG_DATA(header), sizeof outputs);
  const bool taken = ::dup2(outputs[0], STDOUT_FILENO) >= 0 && ::dup2(outputs[1], STDERR_FILENO) >= 0;
  ::close(outputs[0]);
  ::close(outputs[1]);
  return taken;
}

}  // namespace

std::string board_path(const std::string& launch_folder) { return launch_folder + "/board"; }
std::string link_path(const std::string& launch_folder) { return launch_folder + "/link"; }

int listen_for_ranks(const std::string& launch_folder, int ranks) {
  const std::string path = link_path(launch_folder);
  const sockaddr_un address = address_of(path);
  const int listener = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (listener < 0) refuse_link(path, "no socket for the ranks");
  if (::bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 || ::listen(listener, ranks) != 0) {
    const int reason = errno;
    ::close(listener);
    errno = reason;
    refuse_link(path, "no socket for the ranks");
  }
  return listener;
}

RankLink accept_rank(int listener, int ranks) {
  const int descriptor = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  if (descriptor < 0) return {};
  const timeval patience{1, 0};
  ::setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  ucred peer{};
  socklen_t length = sizeof peer;
  int32_t rank = -1;
  const bool fits = ::getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.uid == ::geteuid() &&
                    ::recv(descriptor, &rank, sizeof rank, MSG_WAITALL) == static_cast<ssize_t>(sizeof rank) && rank >= 0 && rank < ranks;
  if (!fits || !send_outputs(descriptor)) {
    ::close(descriptor);
    return {};
  }
  return {rank, descriptor, peer.pid};
}

int connect_to_launcher(const std::string& launch_folder, int rank) {
  const std::string path = link_path(launch_folder);
  const sockaddr_un address = address_of(path);
  const int descriptor = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const timeval patience{patience_seconds, 0};
  const int32_t number = rank;
  if (descriptor < 0 || ::setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) != 0 ||
      ::connect(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::send(descriptor, &number, sizeof number, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof number) || !receive_outputs(descriptor)) {
    const int reason = errno;
    if (descriptor >= 0) ::close(descriptor);
    errno = reason;
    refuse_link(path, "the launcher of this rank can not be reached");
  }
  return descriptor;
}

}  // namespace quire
