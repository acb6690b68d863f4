#include "run/launch_board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "run/descriptor.h"
#include "runtime/error.h"

namespace quire {
namespace {

/// The file's first 64 bytes; entries follow.
struct BoardHeader {
  char magic[16];
  int64_t ranks;
};
constexpr size_t header_bytes = 64;
constexpr char magic[16] = "quire board 1";

[[noreturn]] void refuse_board(const std::string& path, const char* what) {
  const int reason = errno;
  fail<FileError>(path, "the ranks' board can not be {}: {}", what, std::strerror(reason));
}

void* map(const std::string& path, int descriptor, size_t bytes) {
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) refuse_board(path, "mapped");
  return memory;
}

}  // namespace

std::string_view name_of(RankState state) {
  switch (state) {
    case RankState::absent: return "absent";
    case RankState::joining: return "joining";
    case RankState::running: return "running";
    case RankState::ended: return "ended";
    case RankState::failed: return "failed";
  }
  return "?";
}

LaunchBoard LaunchBoard::create(const std::string& path, int ranks) {
  const size_t bytes = header_bytes + sizeof(Entry) * static_cast<size_t>(ranks);
  const Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));  // a mapping needs no open file later
  // Reserved now: writing into a mapped hole on a full disk would end the process by SIGBUS.
  if (file.number() < 0 || (errno = ::posix_fallocate(file.number(), 0, static_cast<off_t>(bytes))) != 0) refuse_board(path, "made");
  LaunchBoard board(map(path, file.number(), bytes), bytes, ranks, -1);
  for (int rank = 0; rank < ranks; ++rank) board.entry(rank).step = -1;
  BoardHeader header{};
  std::memcpy(header.magic, magic, sizeof magic);
  header.ranks = ranks;
  std::memcpy(board.memory_, &header, sizeof header);
  return board;
}

LaunchBoard LaunchBoard::open(const std::string& path, int rank) {
  const Descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  struct stat status {};
  if (file.number() < 0 || ::fstat(file.number(), &status) != 0) refuse_board(path, "opened");
  BoardHeader header{};
  const bool read = ::pread(file.number(), &header, sizeof header, 0) == static_cast<ssize_t>(sizeof header);
  if (!read || std::memcmp(header.magic, magic, sizeof magic) != 0 || header.ranks < 1 || header.ranks > (1 << 20) ||
      status.st_size != static_cast<off_t>(header_bytes + sizeof(Entry) * static_cast<size_t>(header.ranks)))
    fail<DataError>(path, "this is no board of ranks that this version writes");
  if (rank < 0 || rank >= header.ranks) fail<DataError>(path, "the board has {} ranks, this is rank {}", header.ranks, rank);
  const size_t bytes = static_cast<size_t>(status.st_size);
  return LaunchBoard(map(path, file.number(), bytes), bytes, static_cast<int>(header.ranks), rank);
}

LaunchBoard::~LaunchBoard() {
  if (memory_ != nullptr) ::munmap(memory_, bytes_);
}

LaunchBoard::LaunchBoard(LaunchBoard&& other) noexcept
    : memory_(std::exchange(other.memory_, nullptr)), bytes_(other.bytes_), ranks_(other.ranks_), rank_(other.rank_) {}

LaunchBoard::Entry& LaunchBoard::entry(int rank) const {
  if (rank < 0 || rank >= ranks_) fail<StateError>("launch board", "there is no rank {} of {}", rank, ranks_);
  return reinterpret_cast<Entry*>(static_cast<char*>(memory_) + header_bytes)[rank];
}

LaunchBoard::Entry& LaunchBoard::own() {
  if (rank_ < 0) fail<StateError>("launch board", "the launcher has no entry of its own");
  return entry(rank_);
}

}  // namespace quire
