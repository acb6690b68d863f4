#include "nccl_processes.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>

namespace emulation::communication {

namespace {

constexpr size_t piece_bytes = 1 << 14;
constexpr int most_ranks = 16;

}  // namespace

/// From one rank to another: at most one piece that was not taken yet.
struct SharedWorld::Slot {
  std::atomic<uint64_t> given, taken;
  uint64_t bytes, type;  ///< of the whole message
  char data[piece_bytes];
};

/// Valid when zeroed.
struct SharedWorld::Shared {
  std::atomic<int> size, joined;
  std::atomic<pid_t> process[most_ranks];
  std::atomic<int> device[most_ranks];
  std::atomic<uint64_t> host[most_ranks];  ///< a hash of its name
  Slot slots[1];  ///< [size * size]
};

std::shared_ptr<SharedWorld> SharedWorld::join(const std::string& id, int size, int rank, int device) {
  if (size > most_ranks) return nullptr;
  const std::string name = "/quire-" + id;
  const size_t bytes = sizeof(Shared) + static_cast<size_t>(size) * static_cast<size_t>(size) * sizeof(Slot);
  const int file = ::shm_open(name.c_str(), O_RDWR | O_CREAT, 0600);
  if (file < 0) return nullptr;
  const bool large_enough = ::ftruncate(file, static_cast<off_t>(bytes)) == 0;
  void* const memory = large_enough ? ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
  ::close(file);
  if (memory == MAP_FAILED) return nullptr;
  std::shared_ptr<SharedWorld> world(new SharedWorld(static_cast<Shared*>(memory), bytes, rank));
  int unknown = 0;
  pid_t nobody = 0;
  if (!world->shared_->size.compare_exchange_strong(unknown, size) && unknown != size) return nullptr;
  if (!world->shared_->process[rank].compare_exchange_strong(nobody, ::getpid())) return nullptr;
  const char* const host = std::getenv("NCCL_HOSTID");
  world->shared_->device[rank] = device;
  world->shared_->host[rank] = std::hash<std::string>()(host == nullptr ? "" : host);
  if (++world->shared_->joined == size) ::shm_unlink(name.c_str());
  return world;
}

SharedWorld::~SharedWorld() { ::munmap(shared_, bytes_); }

bool SharedWorld::complete() const { return shared_->joined == shared_->size; }

std::string SharedWorld::duplicate() const {
  for (int rank = 1; rank < shared_->size; ++rank)
    for (int other = 0; other < rank; ++other)
      if (shared_->device[rank] == shared_->device[other] && shared_->host[rank] == shared_->host[other])
        return "Duplicate GPU detected : rank " + std::to_string(other) + " and rank " + std::to_string(rank) + " both on CUDA device " + std::to_string(shared_->device[rank].load());
  return "";
}

bool SharedWorld::gone(int rank) const {
  const pid_t process = shared_->process[rank];
  if (process == 0) return false;
  if (::kill(process, 0) != 0) return errno == ESRCH;
  // One that has ended is there until its parent has asked: `NUMBER (NAME) STATE ...`
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t state = text.rfind(')') + 2;
  return state < text.size() && (text[state] == 'Z' || text[state] == 'X');
}

SharedWorld::Slot& SharedWorld::slot(int from, int to) const { return shared_->slots[from * shared_->size + to]; }

bool SharedWorld::send(Transfer& transfer, int to, const char* data, size_t bytes, int type) const {
  Slot& slot = this->slot(rank_, to);
  if (slot.given != slot.taken) return false;  // the last piece, of this message or of the one before
  if (transfer.begun && transfer.moved == bytes) {
    transfer.done = true;
    return true;
  }
  const size_t piece = std::min(piece_bytes, bytes - transfer.moved);
  slot.bytes = bytes;
  slot.type = static_cast<uint64_t>(type);
  if (piece > 0) std::memcpy(slot.data, data + transfer.moved, piece);
  transfer.moved += piece;
  transfer.begun = true;
  ++slot.given;
  return true;
}

bool SharedWorld::receive(Transfer& transfer, int from, char* into, size_t bytes, int type) const {
  Slot& slot = this->slot(from, rank_);
  if (slot.given == slot.taken) return false;
  if (slot.bytes != bytes || slot.type != static_cast<uint64_t>(type)) {
    transfer.problem = "rank " + std::to_string(rank_) + " receives " + std::to_string(bytes) + " bytes of type " + std::to_string(type) + " from rank " + std::to_string(from) +
                       ", which sends " + std::to_string(slot.bytes) + " of type " + std::to_string(slot.type);
    return true;
  }
  const size_t piece = std::min(piece_bytes, bytes - transfer.moved);
  if (piece > 0) std::memcpy(into + transfer.moved, slot.data, piece);
  transfer.moved += piece;
  transfer.done = transfer.moved == bytes;
  ++slot.taken;
  return true;
}

}  // namespace emulation::communication
