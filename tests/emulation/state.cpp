#include "state.h"

#include <algorithm>
#include <cstring>
#include <list>

#include "planted.h"
#include "streams.h"

namespace emulation {

#ifdef EMULATION_ADDRESS_SANITIZER
const bool address_sanitizer = true;
#else
const bool address_sanitizer = false;
#endif
#ifdef EMULATION_THREAD_SANITIZER
const bool thread_sanitizer = true;
#else
const bool thread_sanitizer = false;
#endif

std::atomic<const char*> planted_name{nullptr};
bool is_planted(const char* name) {
  const char* const planted = planted_name.load();
  return planted != nullptr && std::strcmp(planted, name) == 0;
}

namespace {

struct Failure {
  std::string text;
  bool happened = false;
};
struct State {
  Lock lock;
  Settings settings = settings_of_environment();
  std::array<Failure, most_devices> failures;
  std::list<std::string> texts;  ///< handed out by cudaGetErrorString, which never takes them back
  struct Planned {
    int calls;
    cudaError_t error;
  };
  std::map<std::string, Planned, std::less<>> planned;
  std::map<std::string, int64_t, std::less<>> calls;
};
State& state() {
  static State all;
  return all;
}

thread_local int device_of_thread = 0;

}  // namespace

Settings settings() {
  const Quiet quiet;
  const std::lock_guard<Lock> guard(state().lock);
  return state().settings;
}
void set(const Settings& settings) {
  const Quiet quiet;
  const std::lock_guard<Lock> guard(state().lock);
  state().settings = settings;
}
void order(Order order, uint64_t seed) {
  Settings changed = settings();
  changed.order = order;
  changed.seed = seed;
  set(changed);
}

AtomicCounters& counted() {
  static AtomicCounters all;
  return all;
}
void note_switches(uint64_t switches) { counted().switches += static_cast<int64_t>(switches); }

Counters counters() {
  const AtomicCounters& c = counted();
  return {c.kernels,
          c.products,
          c.graphs,
          c.bytes_to_device,
          c.bytes_to_host,
          c.bytes_on_device,
          c.device_synchronizations,
          c.stream_synchronizations,
          c.event_synchronizations,
          c.synchronous_copies,
          c.allocations,
          c.frees,
          c.switches,
          c.messages,
          c.message_groups};
}
void reset_counters() {
  AtomicCounters& c = counted();
  for (auto* counter : {&c.kernels, &c.products, &c.graphs, &c.bytes_to_device, &c.bytes_to_host, &c.bytes_on_device, &c.device_synchronizations,
                        &c.stream_synchronizations, &c.event_synchronizations, &c.synchronous_copies, &c.allocations, &c.frees, &c.switches, &c.messages, &c.message_groups})
    counter->store(0);
  const Quiet quiet;
  const std::lock_guard<Lock> guard(state().lock);
  state().calls.clear();
}

int current_device() { return device_of_thread; }
void choose_device(int device) { device_of_thread = device; }

void note_failure(int device, const std::string& text) {
  const Quiet quiet;
  const std::lock_guard<Lock> guard(state().lock);
  Failure& failure = state().failures[static_cast<size_t>(device)];
  if (failure.happened) return;
  failure.happened = true;
  failure.text = text;
}
bool has_failed(int device) {
  const std::lock_guard<Lock> guard(state().lock);
  return state().failures[static_cast<size_t>(device)].happened;
}
std::string failure(int device) {
  const Quiet quiet;
  const std::lock_guard<Lock> guard(state().lock);
  return state().failures[static_cast<size_t>(device)].text;
}
const char* failure_text(int device) {
  const Quiet quiet;
  const std::lock_guard<Lock> guard(state().lock);
  const Failure& failure = state().failures[static_cast<size_t>(device)];
  if (!failure.happened) return "unspecified launch failure";
  const std::string text = "unspecified launch failure: " + failure.text;
  const auto known = std::find(state().texts.begin(), state().texts.end(), text);
  return known != state().texts.end() ? known->c_str() : state().texts.emplace_back(text).c_str();
}

void fail_call(const std::string& function, int nth, int error) {
  const Quiet quiet;
  const std::lock_guard<Lock> guard(state().lock);
  state().planned[function] = {nth, static_cast<cudaError_t>(error)};
}
std::map<std::string, int64_t> calls() {
  const Quiet quiet;
  const std::lock_guard<Lock> guard(state().lock);
  return {state().calls.begin(), state().calls.end()};
}
cudaError_t planned_failure(const char* function) {
  const Quiet quiet;
  const std::lock_guard<Lock> guard(state().lock);
  const auto counted = state().calls.find(std::string_view(function));
  if (counted != state().calls.end()) ++counted->second;
  else if (*function != 0) state().calls.emplace(function, 1);
  const auto found = state().planned.find(std::string_view(function));
  if (found == state().planned.end() || --found->second.calls > 0) return cudaSuccess;
  const cudaError_t error = found->second.error;
  state().planned.erase(found);
  return error;
}

Planted::Planted(const char* name) {
  drain();
  planted_name = name;
}
Planted::~Planted() {
  drain();
  planted_name = nullptr;
}

void recover() {
  drain();
  const Quiet quiet;
  const std::lock_guard<Lock> guard(state().lock);
  for (Failure& failure : state().failures) failure = Failure{};
  state().planned.clear();
}

size_t allocated(int device) { return allocated_bytes(device); }

Fresh::Fresh() {
  recover();
  set(Settings{});
  reset_counters();
}
Fresh::~Fresh() {
  recover();
  set(Settings{});
}

}  // namespace emulation
