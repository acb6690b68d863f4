#include "runtime/faulty_file_system.h"

#include <algorithm>
#include <cerrno>
#include <functional>
#include <map>
#include <random>
#include <system_error>
#include <utility>

#include "runtime/error.h"

namespace quire {
namespace {

[[noreturn]] void refuse(std::string_view what, const std::string& path, int error) {
  fail<FileError>("file", "{} '{}': {}", what, path, std::generic_category().message(error));
}

std::vector<std::string> parts_of(const std::string& path) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    if (!part.empty() && part != ".") parts.push_back(part);
    begin = end + 1;
  }
  return parts;
}

}  // namespace

/// A file or a directory: what programs see, and what the disk holds.
struct FaultyFileSystem::Node {
  using Names = std::map<std::string, std::shared_ptr<Node>>;
  bool directory = false;
  std::string contents, durable_contents;
  Names names;
  std::vector<Names> history{Names()};  ///< of a directory: the durable names, then the names after each change since the last sync
  void names_changed() { history.push_back(names); }
};

/// A path taken apart: the directory that holds the name, and what is there (or nullptr).
struct FaultyFileSystem::Place {
  std::shared_ptr<Node> parent, node;
  std::string name;
};

struct FaultyFileSystem::State {
  mutable std::mutex mutex;
  std::shared_ptr<Node> root = std::make_shared<Node>();
  Faults faults;
  int64_t operations = 0;

  /// Counts an operation. True: it is the one at which the machine dies (a write may leave a part before it calls `die`).
  bool begin(const std::string& path) {
    const int64_t operation = operations++;
    if (faults.die_at >= 0 && operation > faults.die_at) die();
    if (operation == faults.fail_at) refuse("can not change", path, EIO);
    return operation == faults.die_at;
  }
  [[noreturn]] void die() const { throw PowerLoss{faults.die_at}; }
  void begin_whole(const std::string& path) {
    if (begin(path)) die();
  }
  void check_alive() const {
    if (faults.die_at >= 0 && operations > faults.die_at) die();
  }

  int64_t used() const {
    const std::function<int64_t(const Node&)> bytes_in = [&](const Node& node) {
      int64_t bytes = static_cast<int64_t>(node.contents.size());
      for (const auto& [name, child] : node.names) bytes += name_bytes + bytes_in(*child);
      return bytes;
    };
    return bytes_in(*root);
  }
  int64_t room() const { return faults.capacity < 0 ? INT64_MAX : std::max<int64_t>(0, faults.capacity - used()); }

  Place find(const std::string& path) const {
    Place place{nullptr, root, ""};
    for (const std::string& part : parts_of(path)) {
      if (!place.node || !place.node->directory) return {};
      place.parent = place.node;
      place.name = part;
      const auto found = place.parent->names.find(part);
      place.node = found == place.parent->names.end() ? nullptr : found->second;
    }
    return place;
  }

  void write(Node& file, const std::string& path, int64_t offset, std::span<const std::byte> bytes) {
    const bool last = begin(path);
    size_t length = last ? bytes.size() / 2 : bytes.size();
    const int64_t grows = offset + static_cast<int64_t>(length) - static_cast<int64_t>(file.contents.size());
    const bool full = grows > 0 && grows > room();
    if (full) length -= static_cast<size_t>(std::min<int64_t>(grows - room(), static_cast<int64_t>(length)));
    const size_t begin_byte = static_cast<size_t>(offset);
    if (length > 0) {
      if (file.contents.size() < begin_byte + length) file.contents.resize(begin_byte + length);
      std::copy_n(reinterpret_cast<const char*>(bytes.data()), length, file.contents.begin() + static_cast<int64_t>(begin_byte));
    }
    if (last) die();
    if (full) refuse("can not write", path, ENOSPC);
  }
};

class FaultyFileSystem::OpenFile final : public File {
 public:
  OpenFile(std::shared_ptr<State> state, std::shared_ptr<Node> node, std::string path, bool writable)
      : state_(std::move(state)), node_(std::move(node)), path_(std::move(path)), writable_(writable) {}

  void write(std::span<const std::byte> bytes) override {
    const std::lock_guard lock(state_->mutex);
    write_here(static_cast<int64_t>(node_->contents.size()), bytes);
  }
  void write_at(int64_t offset, std::span<const std::byte> bytes) override {
    const std::lock_guard lock(state_->mutex);
    write_here(offset, bytes);
  }
  void read_at(int64_t offset, std::span<std::byte> bytes) const override {
    const std::lock_guard lock(state_->mutex);
    state_->check_alive();
    const int64_t size = static_cast<int64_t>(node_->contents.size()), length = static_cast<int64_t>(bytes.size());
    if (offset < 0 || offset > size || length > size - offset)
      fail<DataError>("file", "'{}' ends at byte {}, where bytes {} to {} are needed: it is truncated", path_, size, offset,
                      offset + length);
    std::copy_n(node_->contents.begin() + offset, length, reinterpret_cast<char*>(bytes.data()));
  }
  int64_t size() const override {
    const std::lock_guard lock(state_->mutex);
    return static_cast<int64_t>(node_->contents.size());
  }
  void sync() override {
    const std::lock_guard lock(state_->mutex);
    state_->begin_whole(path_);
    if (!state_->faults.swallow_sync) node_->durable_contents = node_->contents;
  }

 private:
  void write_here(int64_t offset, std::span<const std::byte> bytes) {
    if (!writable_) refuse("can not write", path_, EBADF);
    state_->write(*node_, path_, offset, bytes);
  }
  std::shared_ptr<State> state_;
  std::shared_ptr<Node> node_;
  std::string path_;
  bool writable_;
};

FaultyFileSystem::FaultyFileSystem() : state_(std::make_shared<State>()) { state_->root->directory = true; }
FaultyFileSystem::~FaultyFileSystem() = default;

void FaultyFileSystem::set_faults(const Faults& faults) {
  const std::lock_guard lock(state_->mutex);
  state_->faults = faults;
  state_->operations = 0;
}

int64_t FaultyFileSystem::operations() const {
  const std::lock_guard lock(state_->mutex);
  return state_->operations;
}

int64_t FaultyFileSystem::used() const {
  const std::lock_guard lock(state_->mutex);
  return state_->used();
}

std::unique_ptr<File> FaultyFileSystem::open(const std::string& path) {
  const std::lock_guard lock(state_->mutex);
  state_->check_alive();
  const Place place = state_->find(path);
  if (!place.node) refuse("can not open", path, ENOENT);
  if (place.node->directory) refuse("can not open", path, EISDIR);
  return std::make_unique<OpenFile>(state_, place.node, path, false);
}

std::unique_ptr<File> FaultyFileSystem::open_for_writing(const std::string& path, bool truncate) {
  const std::lock_guard lock(state_->mutex);
  state_->begin_whole(path);
  Place place = state_->find(path);
  if (!place.parent) refuse("can not create", path, place.node ? EISDIR : ENOENT);
  if (place.node && place.node->directory) refuse("can not create", path, EISDIR);
  if (!place.node) {
    if (state_->room() < name_bytes) refuse("can not create", path, ENOSPC);
    place.node = std::make_shared<Node>();
    place.parent->names[place.name] = place.node;
    place.parent->names_changed();
  }
  if (truncate) place.node->contents.clear();
  return std::make_unique<OpenFile>(state_, place.node, path, true);
}

std::unique_ptr<File> FaultyFileSystem::create(const std::string& path) { return open_for_writing(path, true); }
std::unique_ptr<File> FaultyFileSystem::append(const std::string& path) { return open_for_writing(path, false); }

bool FaultyFileSystem::exists(const std::string& path) {
  const std::lock_guard lock(state_->mutex);
  state_->check_alive();
  return state_->find(path).node != nullptr;
}

std::vector<std::string> FaultyFileSystem::list(const std::string& directory) {
  const std::lock_guard lock(state_->mutex);
  state_->check_alive();
  const Place place = state_->find(directory);
  if (!place.node) return {};
  if (!place.node->directory) refuse("can not list", directory, ENOTDIR);
  std::vector<std::string> names;
  for (const auto& [name, node] : place.node->names) names.push_back(name);
  return names;
}

void FaultyFileSystem::make_directories(const std::string& path) {
  const std::lock_guard lock(state_->mutex);
  state_->check_alive();
  std::shared_ptr<Node> node = state_->root;
  for (const std::string& part : parts_of(path)) {
    std::shared_ptr<Node> child;
    if (const auto found = node->names.find(part); found != node->names.end()) child = found->second;
    if (child && !child->directory) refuse("can not make the directory", path, ENOTDIR);
    if (!child) {
      state_->begin_whole(path);
      if (state_->room() < name_bytes) refuse("can not make the directory", path, ENOSPC);
      child = std::make_shared<Node>();
      child->directory = true;
      node->names[part] = child;
      node->names_changed();
    }
    node = child;
  }
}

void FaultyFileSystem::rename(const std::string& from, const std::string& to) {
  const std::lock_guard lock(state_->mutex);
  state_->begin_whole(from);
  const Place source = state_->find(from), target = state_->find(to);
  if (!source.node || !source.parent || !target.parent) refuse("can not rename to '" + to + "':", from, ENOENT);
  if (target.node && target.node != source.node) {
    if (target.node->directory != source.node->directory)
      refuse("can not rename to '" + to + "':", from, target.node->directory ? EISDIR : ENOTDIR);
    if (target.node->directory && !target.node->names.empty()) refuse("can not rename to '" + to + "':", from, ENOTEMPTY);
  }
  source.parent->names.erase(source.name);
  target.parent->names[target.name] = source.node;
  if (target.parent != source.parent) target.parent->names_changed();
  source.parent->names_changed();
}

void FaultyFileSystem::remove_all(const std::string& path) {
  const std::lock_guard lock(state_->mutex);
  state_->check_alive();
  const Place place = state_->find(path);
  if (!place.node || !place.parent) return;
  // Names inside go first, one by one, as on a real disk: dying in between leaves a part.
  const std::function<void(Node&, const std::string&)> remove = [&](Node& parent, const std::string& name) {
    const std::shared_ptr<Node> node = parent.names.at(name);
    while (!node->names.empty()) {
      const std::string child = node->names.begin()->first;
      remove(*node, child);
    }
    state_->begin_whole(path);
    parent.names.erase(name);
    parent.names_changed();
  };
  remove(*place.parent, place.name);
}

void FaultyFileSystem::sync_directory(const std::string& path) {
  const std::lock_guard lock(state_->mutex);
  state_->begin_whole(path);
  const Place place = state_->find(path);
  if (!place.node) refuse("can not open the directory", path, ENOENT);
  if (!place.node->directory) refuse("can not open the directory", path, ENOTDIR);
  if (!state_->faults.swallow_sync_directory) place.node->history = {place.node->names};
}

std::unique_ptr<FaultyFileSystem> FaultyFileSystem::copy() const {
  const std::lock_guard lock(state_->mutex);
  std::map<const Node*, std::shared_ptr<Node>> copies;  // a file may have a durable and a newer name
  const std::function<std::shared_ptr<Node>(const std::shared_ptr<Node>&)> copy_of = [&](const std::shared_ptr<Node>& node) {
    std::shared_ptr<Node>& made = copies[node.get()];
    if (made) return made;
    const std::shared_ptr<Node> result = made = std::make_shared<Node>(*node);
    for (auto& [name, child] : result->names) child = copy_of(child);
    for (auto& names : result->history)
      for (auto& [name, child] : names) child = copy_of(child);
    return result;
  };
  auto result = std::make_unique<FaultyFileSystem>();
  result->state_->root = copy_of(state_->root);
  return result;
}

std::unique_ptr<FaultyFileSystem> FaultyFileSystem::crash(CrashKind kind, uint64_t seed) const {
  std::unique_ptr<FaultyFileSystem> result = copy();
  std::mt19937_64 random(seed);
  const bool names_kept = kind == CrashKind::everything || kind == CrashKind::names_first;
  const bool contents_kept = kind == CrashKind::everything || kind == CrashKind::contents_first;
  std::map<const Node*, bool> done;
  const std::function<void(Node&)> settle = [&](Node& node) {
    if (std::exchange(done[&node], true)) return;
    if (kind == CrashKind::random) {
      node.names = node.history[random() % node.history.size()];
      const uint64_t choice = random() % 3;
      if (choice == 0) node.contents = node.durable_contents;
      if (choice == 1) {  // the new size with an unwritten end
        const size_t written = node.contents.empty() ? 0 : random() % node.contents.size();
        if (node.contents != node.durable_contents)
          std::fill(node.contents.begin() + static_cast<int64_t>(written), node.contents.end(), '\0');
      }
    } else {
      if (!names_kept) node.names = node.history.front();
      if (!contents_kept) node.contents = node.durable_contents;
    }
    node.durable_contents = node.contents;
    node.history = {node.names};
    for (const auto& [name, child] : node.names) settle(*child);
  };
  settle(*result->state_->root);
  return result;
}

}  // namespace quire
