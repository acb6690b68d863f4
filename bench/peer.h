// A peer to compare with: a child process that answers one line of JSON to each line of JSON.
#pragma once
#include <sys/types.h>

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace quire::bench {

/// Where peers are found: PYTHON below `folder`/NAME/bin, run with `script`.
struct PeerPlace {
  std::string name, python, script;
};

/// Every folder in `folder` with a bin/python, by name. Throws ConfigError where the folder or the script is missing, or no peer is in it.
std::vector<PeerPlace> find_peers(const std::string& folder, const std::string& script);

/// A running peer. It computes only while `ask` waits, with one thread. Killed when it goes out of scope. Everything thrown names the peer.
class Peer {
 public:
  /// Starts it and asks `hello`. Throws FileError where it does not start or ends, DataError where its answer is not of the protocol.
  Peer(const PeerPlace& place, double patience_seconds);
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  const std::string& name() const { return name_; }
  const std::string& version() const { return version_; }
  const std::string& build() const { return build_; }

  /// One request, one answer: an object with `ok`, and `reason` where that is false. Throws FileError where the peer ended (its last words are told) or was
  /// silent for longer than its patience, after which it is dead; DataError where it said something else.
  nlohmann::json ask(const nlohmann::json& request);
  /// A number of an answer. DataError where it is missing.
  double number(const nlohmann::json& answer, const char* key) const;

 private:
  void start(const PeerPlace& place);
  void end() noexcept;
  /// Waits for the answer's line; false at the end of its output.
  bool read_line(std::string& line);
  std::string last_words();

  std::string name_, version_, build_;
  double patience_;
  pid_t child_ = -1;
  int in_ = -1, out_ = -1, err_ = -1;
  std::string pending_, errors_;
};

}  // namespace quire::bench
