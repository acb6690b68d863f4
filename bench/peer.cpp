#include "bench/peer.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "runtime/error.h"

extern char** environ;

namespace quire::bench {

namespace {

using Clock = std::chrono::steady_clock;

/// One thread each, no graphics card, and what makes PyTorch's allocator quicker on a CPU: huge pages, and memory that stays with the process.
const std::vector<std::string>& peer_settings() {
  static const std::vector<std::string> settings{
      "OMP_NUM_THREADS=1",       "MKL_NUM_THREADS=1",         "OPENBLAS_NUM_THREADS=1",
      "CUDA_VISIBLE_DEVICES=",   "PYTHONUNBUFFERED=1",        "TORCHINDUCTOR_COMPILE_THREADS=1",
      "THP_MEM_ALLOC_ENABLE=1",  "MALLOC_MMAP_THRESHOLD_=4294967296", "MALLOC_TRIM_THRESHOLD_=8589934592"};
  return settings;
}

std::string up_to(std::string text, size_t most) {
  if (text.size() > most) text = text.substr(0, most) + "...";
  return text;
}

}  // namespace

std::vector<PeerPlace> find_peers(const std::string& folder, const std::string& script) {
  namespace fs = std::filesystem;
  const char* way_out = "tests/peers/setup makes build/peers; or run without peers (--no-peers)";
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) fail<ConfigError>("bench", "--peers is {}, which is no folder; {}", folder, way_out);
  if (!fs::is_regular_file(script, ignored))
    fail<ConfigError>("bench", "there is no {}; start it from the root of a checkout, or name the script with --peer-script", script);
  std::vector<PeerPlace> places;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const fs::path python = entry.path() / "bin" / "python";
    if (fs::exists(python, ignored)) places.push_back({entry.path().filename().string(), python.string(), script});
  }
  if (places.empty()) fail<ConfigError>("bench", "--peers is {}, where no folder has a bin/python; {}", folder, way_out);
  std::ranges::sort(places, {}, &PeerPlace::name);
  return places;
}

Peer::Peer(const PeerPlace& place, double patience_seconds) : name_(place.name), patience_(patience_seconds) {
  start(place);
  try {
    const nlohmann::json hello = ask({{"ask", "hello"}});
    if (!hello.contains("version") || !hello["version"].is_string() || !hello.contains("build") || !hello["build"].is_string())
      fail<DataError>("peer " + name_, "its hello is {}; version and build are needed", up_to(hello.dump(), 200));
    version_ = hello["version"];
    build_ = hello["build"];
  } catch (...) {
    end();
    throw;
  }
}

Peer::~Peer() { end(); }

void Peer::start(const PeerPlace& place) {
  int in[2], out[2], err[2];
  // A socket, because writing to one whose reader is dead can be an error instead of a signal.
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, in) != 0 || ::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(err, O_CLOEXEC) != 0)
    fail<FileError>("peer " + name_, "no pipes to speak through");
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, in[1], STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, err[1], STDERR_FILENO);
  std::vector<char*> environment;
  std::vector<std::string> settings = peer_settings();
  for (char** each = environ; *each; ++each) {
    const std::string_view set(*each);
    const std::string_view key = set.substr(0, set.find('='));
    if (std::ranges::none_of(settings, [&](const std::string& own) { return std::string_view(own).substr(0, own.find('=')) == key; })) environment.push_back(*each);
  }
  for (std::string& each : settings) environment.push_back(each.data());
  environment.push_back(nullptr);
  std::string python = place.python, script = place.script;
  char* arguments[] = {python.data(), script.data(), nullptr};
  const int refused = ::posix_spawn(&child_, python.c_str(), &actions, nullptr, arguments, environment.data());
  ::posix_spawn_file_actions_destroy(&actions);
  for (const int theirs : {in[1], out[1], err[1]}) ::close(theirs);
  in_ = in[0];
  out_ = out[0];
  err_ = err[0];
  if (refused != 0) {
    child_ = -1;
    end();
    fail<FileError>("peer " + name_, "{} does not start: {}", place.python, std::string(std::strerror(refused)));
  }
}

void Peer::end() noexcept {
  for (int* file : {&in_, &out_, &err_}) {
    if (*file >= 0) ::close(*file);
    *file = -1;
  }
  if (child_ > 0) {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  child_ = -1;
}

bool Peer::read_line(std::string& line) {
  const Clock::time_point deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(patience_));
  while (true) {
    if (const size_t newline = pending_.find('\n'); newline != std::string::npos) {
      line = pending_.substr(0, newline);
      pending_.erase(0, newline + 1);
      return true;
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd entries[2] = {{out_, POLLIN, 0}, {err_, POLLIN, 0}};  // a negative descriptor is passed over
    if (left <= 0 || ::poll(entries, 2, static_cast<int>(std::min<int64_t>(left, 1 << 30))) == 0) {
      end();
      fail<FileError>("peer " + name_, "no answer within {:g} s; allow more with --patience", patience_);
    }
    char buffer[4096];
    if (entries[1].revents != 0) {
      const ssize_t count = ::read(err_, buffer, sizeof buffer);
      if (count > 0) errors_.append(buffer, static_cast<size_t>(count));
      if (errors_.size() > 16384) errors_.erase(0, errors_.size() - 8192);
      if (count == 0) {
        ::close(err_);
        err_ = -1;
      }
    }
    if (entries[0].revents != 0) {
      const ssize_t count = ::read(out_, buffer, sizeof buffer);
      if (count > 0) pending_.append(buffer, static_cast<size_t>(count));
      if (count == 0) return false;
    }
  }
}

std::string Peer::last_words() {
  char buffer[4096];
  // What a dead process left in the pipe; a child of its own may hold the other end open, which must not be waited for.
  if (err_ >= 0 && ::fcntl(err_, F_SETFL, O_NONBLOCK) == 0)
    for (ssize_t count; (count = ::read(err_, buffer, sizeof buffer)) > 0;) errors_.append(buffer, static_cast<size_t>(count));
  while (!errors_.empty() && (errors_.back() == '\n' || errors_.back() == ' ')) errors_.pop_back();
  const size_t line = errors_.rfind('\n');
  return errors_.empty() ? "it said nothing" : "its last words: " + up_to(line == std::string::npos ? errors_ : errors_.substr(line + 1), 300);
}

nlohmann::json Peer::ask(const nlohmann::json& request) {
  const std::string asked = request.dump() + "\n";
  if (child_ <= 0) fail<FileError>("peer " + name_, "it has ended");
  std::string line;
  size_t sent = 0;
  while (sent < asked.size()) {
    const ssize_t count = ::send(in_, asked.data() + sent, asked.size() - sent, MSG_NOSIGNAL);
    if (count <= 0) break;
    sent += static_cast<size_t>(count);
  }
  if (sent < asked.size() || !read_line(line)) {
    int status = 0;
    // Its output ended, which is the end of it: one that lives on without an output is none.
    ::usleep(100000);
    const bool ended = ::waitpid(child_, &status, WNOHANG) == child_;
    if (ended) child_ = -1;
    const std::string how = !ended ? "closed its output" : WIFSIGNALED(status) ? fmt::format("was killed by signal {}", WTERMSIG(status))
                                                                                : fmt::format("ended with status {}", WEXITSTATUS(status));
    const std::string words = last_words();
    end();
    fail<FileError>("peer " + name_, "it {}; {}", how, words);
  }
  nlohmann::json answer = nlohmann::json::parse(line, nullptr, false);
  if (!answer.is_object() || !answer.contains("ok") || !answer["ok"].is_boolean())
    fail<DataError>("peer " + name_, "it answered '{}'; a line with one JSON object that has \"ok\" is needed", up_to(line, 100));
  if (!answer["ok"].get<bool>() && !(answer.contains("reason") && answer["reason"].is_string()))
    fail<DataError>("peer " + name_, "it refused without a reason: {}", up_to(line, 100));
  return answer;
}

double Peer::number(const nlohmann::json& answer, const char* key) const {
  if (!answer.contains(key) || !answer[key].is_number()) fail<DataError>("peer " + name_, "its answer {} lacks the number {}", up_to(answer.dump(), 200), key);
  return answer[key];
}

}  // namespace quire::bench
