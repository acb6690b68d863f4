// Messages of the emulated NCCL between processes that share memory. For nccl*.cpp alone.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace emulation::communication {

/// All ranks of a communicator, each in a process of its own.
class SharedWorld {
 public:
  /// Null where another rank has come with another size, with this rank, or the memory is not to be had.
  static std::shared_ptr<SharedWorld> join(const std::string& id, int size, int rank, int device);
  ~SharedWorld();
  SharedWorld(const SharedWorld&) = delete;
  SharedWorld& operator=(const SharedWorld&) = delete;

  bool complete() const;
  /// Of a complete world: as NCCL names two ranks of one host on one device, "" where there are none. A host is what NCCL_HOSTID says, as for NCCL.
  std::string duplicate() const;
  /// Whether the process of a rank is gone.
  bool gone(int rank) const;

  /// One side of a message, in pieces: each is handed over when the other side asks for it.
  struct Transfer {
    size_t moved = 0;
    bool begun = false, done = false;
    std::string problem;
  };
  /// Does what can be done now; true where that was something.
  bool send(Transfer& transfer, int to, const char* data, size_t bytes, int type) const;
  bool receive(Transfer& transfer, int from, char* into, size_t bytes, int type) const;

 private:
  struct Slot;
  struct Shared;
  SharedWorld(Shared* shared, size_t bytes, int rank) : shared_(shared), bytes_(bytes), rank_(rank) {}
  Slot& slot(int from, int to) const;

  Shared* const shared_;
  const size_t bytes_;
  const int rank_;
};

}  // namespace emulation::communication
