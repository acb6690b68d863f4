// Peers made of a few lines of shell: the python of their environment is sh, so the script that a peer runs is theirs.
#pragma once
#include <filesystem>
#include <fstream>

#include "bench/peer.h"
#include "run/scratch.h"

namespace quire::test {

/// Answers well: refuses `dense`, is quickest with `loop`, and tells what it was asked in the file `asked` beside the script.
inline const char* good_peer = R"(
while read -r line; do
  echo "$line" >> "${0%/*}/asked"
  case $line in
    *'"ask":"hello"'*) echo '{"ok":true,"version":"fake 1.0","build":"shell, one thread"}' ;;
    *'"ask":"memory"'*) echo '{"ok":true,"peak_bytes":1048576}' ;;
    *'"ask":"iterate"'*) echo '{"ok":true,"seconds":1000.0,"loss":4.0}' ;;
    *'"variant":"dense"'*) echo '{"ok":false,"reason":"ValueError: nothing dense here"}' ;;
    *'"variant":"loop"'*) echo '{"ok":true,"seconds":0.25,"loss":4.5}' ;;
    *) echo '{"ok":true,"seconds":0.5,"loss":4.25}' ;;
  esac
done
)";

struct FakePeers : Scratch {
  /// One peer for each name, all running `script`.
  explicit FakePeers(const std::string& script, const std::vector<std::string>& names = {"fake"}) {
    for (const std::string& name : names) {
      std::filesystem::create_directories(path("peers/" + name + "/bin"));
      std::filesystem::create_symlink("/bin/sh", path("peers/" + name + "/bin/python"));
    }
    std::ofstream(path("script")) << script;
  }
  std::string folder() const { return path("peers"); }
  std::string script() const { return path("script"); }
  bench::PeerPlace place() const { return bench::find_peers(folder(), script()).at(0); }
  std::string asked() const {
    std::ifstream file(path("asked"));
    return {std::istreambuf_iterator<char>(file), {}};
  }
};

}  // namespace quire::test
