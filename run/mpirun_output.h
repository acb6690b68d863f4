// What mpirun itself says, apart from the ranks' own output: known banners become facts, everything else is passed on.
#pragma once
#include <string>
#include <string_view>

namespace quire {

/// Reads what mpirun (of Open MPI 4 and 5, or MPICH's Hydra) writes, in pieces of any size.
class MpirunOutput {
 public:
  /// What of it a person has to see, whole lines.
  std::string take(std::string_view piece);
  /// The rest, at the end of the stream.
  std::string finish();

  int dead_rank() const { return dead_rank_; }      ///< the rank that mpirun names as the first that ended badly; -1: none
  int dead_signal() const { return dead_signal_; }  ///< the signal that ended it; 0: none named
  int dead_status() const { return dead_status_; }  ///< its exit status; 0: none named

 private:
  std::string take_line(std::string_view line);
  /// Takes what is known from a line; false where it is none of the banners' lines.
  bool understand(std::string_view line);
  std::string end_block();

  std::string partial_, block_;
  bool in_block_ = false, block_known_ = false;
  int dead_rank_ = -1, dead_signal_ = 0, dead_status_ = 0;
};

}  // namespace quire
