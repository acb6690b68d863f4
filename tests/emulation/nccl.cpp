// NCCL's functions, between threads of one process that have an emulated device each, or between processes (Settings::ranks_are_processes).
#include "nccl_state.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

#include "libraries.h"
#include "sanitizers.h"
#include "state.h"

namespace emulation::communication {

namespace {

/// A communicator that is to be made when the thread's group ends.
struct Making {
  ncclComm_t* place;
  int size, rank, device;
  std::string id;
};
/// Between ncclGroupStart and ncclGroupEnd of one thread.
struct OpenGroup {
  int depth = 0;
  std::vector<Making> makings;
  std::vector<std::shared_ptr<Group>> groups;  ///< one for each communicator
  ncclResult_t error = ncclSuccess;
};
thread_local OpenGroup open_group;
thread_local std::string last_error;

ncclResult_t planned(const char* function) { return static_cast<ncclResult_t>(planned_failure(function)); }

ncclResult_t get_version(int* version) {
  const int said = settings().nccl_version;
  *version = said != 0 ? said : NCCL_VERSION_CODE;
  return planned("ncclGetVersion");
}

ncclResult_t get_unique_id(ncclUniqueId* id) {
  const Quiet quiet;
  const std::lock_guard<Lock> guard(state().lock);
  std::memset(id, 0, sizeof *id);
  std::snprintf(id->internal, sizeof id->internal, "emulated %d %lld", static_cast<int>(::getpid()), static_cast<long long>(++state().made));
  return planned("ncclGetUniqueId");
}

/// The same where each rank is a process.
ncclResult_t make_between_processes(const std::vector<Making>& makings) {
  std::vector<std::shared_ptr<World>> worlds;
  for (const Making& each : makings) {
    auto world = std::make_shared<World>();
    std::string name = each.id;
    std::replace(name.begin(), name.end(), ' ', '-');
    world->size = each.size;
    world->devices.assign(static_cast<size_t>(each.size), -1);
    world->shared = SharedWorld::join(name, each.size, each.rank, each.device);
    if (world->shared == nullptr) return ncclInvalidUsage;
    worlds.push_back(std::move(world));
  }
  const int patience = settings().communication_patience;
  const auto since = std::chrono::steady_clock::now();
  for (size_t i = 0; i < makings.size(); ++i) {
    while (!worlds[i]->shared->complete()) {
      if (patience > 0 && std::chrono::steady_clock::now() - since > std::chrono::milliseconds(patience)) return ncclSystemError;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (last_error = worlds[i]->shared->duplicate(); !last_error.empty()) return ncclInvalidUsage;
    auto member = std::make_shared<Member>();
    member->world = worlds[i];
    member->rank = makings[i].rank;
    member->device = makings[i].device;
    *makings[i].place = new ncclComm{std::move(member)};
  }
  return ncclSuccess;
}

/// Joins all, then waits for the others of each.
ncclResult_t make_between_threads(const std::vector<Making>& makings) {
  const Quiet quiet;
  const std::lock_guard<Lock> guard(state().lock);
  std::vector<std::shared_ptr<World>> worlds;
  for (const Making& each : makings) {
    std::shared_ptr<World>& world = state().worlds[each.id];
    if (world == nullptr) {
      world = std::make_shared<World>();
      world->number = std::strtoll(std::strrchr(each.id.c_str(), ' ') + 1, nullptr, 10);
      world->size = each.size;
      world->devices.assign(static_cast<size_t>(each.size), -1);
    }
    const auto taken = std::find(world->devices.begin(), world->devices.end(), each.device);
    if (world->size != each.size || world->devices[static_cast<size_t>(each.rank)] >= 0 || taken != world->devices.end()) return ncclInvalidUsage;
    world->devices[static_cast<size_t>(each.rank)] = each.device;
    ++world->joined;
    worlds.push_back(world);
  }
  state().changed.notify();
  for (size_t i = 0; i < makings.size(); ++i) {
    const int patience = settings().communication_patience;
    const auto since = std::chrono::steady_clock::now();
    while (worlds[i]->joined < worlds[i]->size) {
      if (patience > 0 && std::chrono::steady_clock::now() - since > std::chrono::milliseconds(patience)) return ncclSystemError;
      state().changed.pause(state().lock, 50);
    }
    state().worlds.erase(makings[i].id);
    auto member = std::make_shared<Member>();
    member->world = worlds[i];
    member->rank = makings[i].rank;
    member->device = makings[i].device;
    *makings[i].place = new ncclComm{std::move(member)};
  }
  return ncclSuccess;
}

ncclResult_t make(const std::vector<Making>& makings) {
  const ncclResult_t result = settings().ranks_are_processes ? make_between_processes(makings) : make_between_threads(makings);
  for (const Making& each : makings) wrote(each.place, sizeof *each.place);
  return result;
}

ncclResult_t end_of(ncclResult_t result) {
  if (result != ncclSuccess && open_group.depth > 0) open_group.error = result;
  return result;
}

ncclResult_t init_rank(ncclComm_t* communicator, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (const ncclResult_t wrong = planned("ncclCommInitRankConfig"); wrong != ncclSuccess) return end_of(wrong);
  const bool blocks = config == nullptr || config->magic == 0xcafebeef;
  if (size < 1 || rank < 0 || rank >= size || !blocks || std::strncmp(id.internal, "emulated ", 9) != 0) return end_of(ncclInvalidArgument);
  const Making making{communicator, size, rank, current_device(), id.internal};
  if (open_group.depth == 0) return make({making});
  open_group.makings.push_back(making);
  return ncclSuccess;
}

ncclResult_t destroy(ncclComm_t communicator) {
  if (communicator == nullptr) return ncclInvalidArgument;
  {
    const Quiet quiet;
    const std::lock_guard<Lock> guard(state().lock);
    Member& member = *communicator->member;
    if (member.last != nullptr) member.last->stream->demand(member.last->place);
    state().changed.wait(state().lock, [&] { return member.under_way == 0; });
    member.last.reset();
  }
  delete communicator;
  return planned("ncclCommDestroy");
}

ncclResult_t abort(ncclComm_t communicator) {
  if (communicator == nullptr) return ncclInvalidArgument;
  {
    const Quiet quiet;
    const std::lock_guard<Lock> guard(state().lock);
    communicator->member->aborted = true;
    communicator->member->last.reset();
    state().changed.notify();
  }
  delete communicator;
  return planned("ncclCommAbort");
}

ncclResult_t get_async_error(ncclComm_t communicator, ncclResult_t* error) {
  if (communicator == nullptr) return ncclInvalidArgument;
  *error = planned("ncclCommGetAsyncError");
  const std::lock_guard<Lock> guard(state().lock);
  if (communicator->member->other_gone) *error = ncclRemoteError;
  return ncclSuccess;
}

const char* get_error_string(ncclResult_t error) {
  switch (error) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError: return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError: return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument: return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage: return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError: return "remote process exited or there was a network error";
    default: return "unknown result code";
  }
}
const char* get_last_error(ncclComm_t) { return last_error.c_str(); }

ncclResult_t group_start() {
  if (const ncclResult_t wrong = planned("ncclGroupStart"); wrong != ncclSuccess) return wrong;
  ++open_group.depth;
  return ncclSuccess;
}

ncclResult_t group_end() {
  if (open_group.depth == 0) return ncclInvalidUsage;
  if (--open_group.depth > 0) return ncclSuccess;
  OpenGroup group = std::exchange(open_group, OpenGroup{});
  if (const ncclResult_t wrong = planned("ncclGroupEnd"); wrong != ncclSuccess) return wrong;
  if (group.error != ncclSuccess) return group.error;
  if (!group.makings.empty())
    if (const ncclResult_t wrong = make(group.makings); wrong != ncclSuccess) return wrong;
  for (const auto& each : group.groups) launch(each);
  for (const auto& each : group.groups) each->stream->settle(each->place);
  return ncclSuccess;
}

ncclResult_t post(bool sends, const void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t communicator, cudaStream_t handle) {
  if (communicator == nullptr) return ncclInvalidArgument;
  const std::shared_ptr<Member> member = communicator->member;
  const std::shared_ptr<Stream> stream = stream_of(handle);
  const size_t bytes = count * size_of(type);
  const Allocation memory = find_allocation(data);
  const bool right_memory = bytes == 0 || (memory.on_device && memory.contains(data, bytes) && memory.device == member->device);
  if (stream == nullptr || stream->device() != member->device || member->device != current_device() || peer < 0 || peer >= member->world->size || size_of(type) == 0 ||
      !right_memory)
    return ncclInvalidArgument;
  std::shared_ptr<Group> group;
  for (const auto& each : open_group.groups)
    if (each->member == member) group = each;
  if (group != nullptr && group->stream != stream) return ncclInvalidUsage;
  if (group == nullptr) {
    group = std::make_shared<Group>();
    group->member = member;
    group->stream = stream;
    if (open_group.depth > 0) open_group.groups.push_back(group);
  }
  auto message = std::make_unique<Message>();
  message->world = member->world;
  message->rank = member->rank;
  message->peer = peer;
  message->sends = sends;
  message->data = static_cast<char*>(const_cast<void*>(data));
  message->count = count;
  message->type = type;
  group->messages.push_back(std::move(message));
  if (open_group.depth > 0) return ncclSuccess;
  launch(group);
  stream->settle(group->place);
  return ncclSuccess;
}

ncclResult_t send(const void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t communicator, cudaStream_t stream) {
  if (const ncclResult_t wrong = planned("ncclSend"); wrong != ncclSuccess) return end_of(wrong);
  return end_of(post(true, data, count, type, peer, communicator, stream));
}
ncclResult_t receive(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t communicator, cudaStream_t stream) {
  if (const ncclResult_t wrong = planned("ncclRecv"); wrong != ncclSuccess) return end_of(wrong);
  return end_of(post(false, data, count, type, peer, communicator, stream));
}

void* function_of(const char* name) {
  static const std::map<std::string, void*> functions = {
      {"ncclGetVersion", reinterpret_cast<void*>(&get_version)},
      {"ncclGetUniqueId", reinterpret_cast<void*>(&get_unique_id)},
      {"ncclCommInitRankConfig", reinterpret_cast<void*>(&init_rank)},
      {"ncclCommDestroy", reinterpret_cast<void*>(&destroy)},
      {"ncclCommAbort", reinterpret_cast<void*>(&abort)},
      {"ncclCommGetAsyncError", reinterpret_cast<void*>(&get_async_error)},
      {"ncclGetErrorString", reinterpret_cast<void*>(&get_error_string)},
      {"ncclGetLastError", reinterpret_cast<void*>(&get_last_error)},
      {"ncclGroupStart", reinterpret_cast<void*>(&group_start)},
      {"ncclGroupEnd", reinterpret_cast<void*>(&group_end)},
      {"ncclSend", reinterpret_cast<void*>(&send)},
      {"ncclRecv", reinterpret_cast<void*>(&receive)},
  };
  const auto found = functions.find(name);
  return found == functions.end() ? nullptr : found->second;
}

}  // namespace

}  // namespace emulation::communication

namespace emulation {

Library nccl_library() {
  return {"libnccl.so", [] { return true; }, [](const char* name) { return communication::function_of(name); }};
}

}  // namespace emulation
