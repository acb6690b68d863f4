// What the emulated NCCL keeps: communicators, messages that were posted, groups of them that streams carry out. For nccl*.cpp alone.
#pragma once
#include <nccl.h>

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lock.h"
#include "nccl_processes.h"
#include "streams.h"

namespace emulation::communication {

struct Group;
struct World;

/// One side of a message. It has its other side as soon as both were posted: the k-th send of a pair belongs to the k-th receive.
struct Message {
  enum class State : uint8_t { posted, moving, done };
  std::shared_ptr<World> world;
  int rank = 0, peer = 0;
  bool sends = false;
  char* data = nullptr;
  size_t count = 0;
  ncclDataType_t type = ncclInt8;
  State state = State::posted;
  Message* other = nullptr;
  Group* group = nullptr;
  char order = 0;  ///< its address carries ThreadSanitizer's edges
};

/// What a communicator's rank launched at once on a stream.
struct Group {
  std::vector<std::unique_ptr<Message>> messages;
  std::shared_ptr<struct Member> member;
  std::shared_ptr<Stream> stream;
  std::shared_ptr<Group> before;  ///< of the same communicator: they go one after the other
  uint64_t place = 0;
  bool running = false, over = false;
  std::string failure;
};

/// All ranks of a communicator.
struct World {
  std::shared_ptr<SharedWorld> shared;  ///< where they are processes; the rest then knows of this rank alone
  int64_t number = 0;
  int size = 0, joined = 0;
  std::vector<int> devices;  ///< by rank, -1 before it has come
  std::map<std::pair<int, int>, std::deque<Message*>> sends, receives;  ///< that have no other side yet
};

/// One rank's part of a communicator.
struct Member {
  std::shared_ptr<World> world;
  int rank = 0, device = 0;
  bool aborted = false;
  bool other_gone = false;  ///< the process of a rank that was to answer
  std::shared_ptr<Group> last;
  int under_way = 0;  ///< groups
};

size_t size_of(ncclDataType_t type);

/// Everything is under one lock.
struct State {
  Lock lock;
  Signal changed;
  std::map<std::string, std::shared_ptr<World>> worlds;  ///< by identifier, until all have joined
  std::vector<std::shared_ptr<Group>> groups;            ///< that are not over
  int64_t made = 0;
};
State& state();

/// Posts a group's messages and queues it on its stream.
void launch(const std::shared_ptr<Group>& group);

}  // namespace emulation::communication

struct ncclComm {
  std::shared_ptr<emulation::communication::Member> member;
};
