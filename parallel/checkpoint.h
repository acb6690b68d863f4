// Checkpoints: safetensors files and one index that says where every slice of every tensor lies, so that any layout can read what
// any other wrote. Published whole or not at all.
//
//   RUN/checkpoints/step-00000030/index.json                          what is where, with checksums
//                                 state.json                          loader, optimizer and configuration, as given
//                                 rank-00000-parameter.safetensors    one file for each rank and kind
//
// A checkpoint is written as `step-00000030.writing`; files and names are synced before it is renamed, so a crash at any point
// leaves either the checkpoint before or the new one complete. `.writing`, `.removing` and `.replaced` are leftovers of a crash:
// the next save cleans up.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "parallel/checkpoint_index.h"
#include "runtime/file.h"
#include "runtime/tensor.h"

namespace quire {

/// A slice of a global tensor that one rank holds and saves. Every element of the global tensor is saved by exactly one rank.
struct CheckpointTensor {
  std::string name;             ///< global: `layers.0.attention.q.weight`
  std::string kind;             ///< parameter, master, moment1, moment2; letters, digits and underscores
  Shape global_shape;
  std::vector<int64_t> offset;  ///< of the slice, one entry for each dimension
  Tensor local;                 ///< the slice; its shape is the slice's. In host memory, or contiguous on a device
};

/// `RUN/checkpoints/step-00000030`
std::string checkpoint_folder(const std::string& run_folder, int64_t step);

/// Saves from one rank and returns the published folder. keep_last_n > 0: older checkpoints beyond that number (this one
/// included) are deleted after publishing; those of later steps are never touched. A checkpoint of the same step is replaced. On
/// any error what was written is cleaned up, earlier checkpoints stay whole, and the error is thrown on (FileError for a full
/// disk).
std::string save_checkpoint(FileSystem& fs, const std::string& run_folder, int64_t step, const std::vector<CheckpointTensor>& tensors,
                            const std::string& state, int64_t keep_last_n = 0);

/// The same in steps, for several ranks on one file system; a barrier lies between any two of them.
/// Rank 0: cleans up leftovers and makes the folder.
void begin_checkpoint(FileSystem& fs, const std::string& run_folder, int64_t step);
/// Every rank: writes its files and makes them durable. ShapeError, DataError for slices that do not fit.
void write_checkpoint_part(FileSystem& fs, const std::string& run_folder, int64_t step, int64_t rank_number,
                           const std::vector<CheckpointTensor>& tensors);
/// Rank 0: checks that the ranks' slices cover every tensor exactly once (DataError), writes state and index, publishes, deletes
/// old ones.
std::string publish_checkpoint(FileSystem& fs, const std::string& run_folder, int64_t step, int64_t ranks, const std::string& state,
                               int64_t keep_last_n = 0);
/// Rank 0, where a save failed: removes what was written. Throws nothing; what can not be removed is left to the next save.
void abandon_checkpoint(FileSystem& fs, const std::string& run_folder, int64_t step);

/// How much is verified when a checkpoint is opened. The index and the state always are.
enum class CheckpointCheck {
  sizes,     ///< all files are there and have their sizes; a slice's checksum is verified when it is first read
  contents,  ///< every byte of every file, by checksum
};

/// Reads slices of a published checkpoint, whatever layout wrote it. Throws DataError naming file and tensor for damage. Not
/// thread-safe.
class CheckpointReader {
 public:
  CheckpointReader(FileSystem& fs, std::string folder, CheckpointCheck check = CheckpointCheck::contents);

  int64_t step() const { return index_.step; }
  const std::string& folder() const { return folder_; }
  const std::string& state() const { return state_; }
  /// Distinct global tensors, by kind and name.
  struct Entry {
    std::string kind, name;
    DType dtype;
    Shape shape;
  };
  std::vector<Entry> entries() const;
  bool contains(const std::string& kind, const std::string& name) const { return tensors_.contains({kind, name}); }

  /// Fills `into` (its last dimension contiguous; on a device: all of it) with the slice of its shape that begins at `offset`. DataError: no
  /// such tensor (with the nearest name), another dtype. ShapeError: the slice does not lie inside.
  void read(const std::string& kind, const std::string& name, const std::vector<int64_t>& offset, const Tensor& into);
  /// The whole tensor; ShapeError unless `into` has the global shape.
  void read(const std::string& kind, const std::string& name, const Tensor& into);

 private:
  struct Source {
    Entry entry;
    std::vector<size_t> pieces;
  };
  const Source& source(const std::string& kind, const std::string& name) const;
  /// Host memory for the elements of `shape`, with strides.
  struct Target {
    std::byte* data;
    Shape shape, strides;
  };
  void read_piece(size_t piece, const std::vector<int64_t>& offset, const Target& into);
  void verify_piece(size_t piece);
  File& file(const std::string& name);  ///< valid until the next call

  FileSystem& fs_;
  std::string folder_, state_;
  CheckpointIndex index_;
  std::map<std::pair<std::string, std::string>, Source> tensors_;
  std::map<std::string, std::unique_ptr<File>> files_;
  std::vector<char> verified_;  ///< by piece
};

/// The newest complete checkpoint of a run.
struct CheckpointSearch {
  std::string folder;                ///< "" where there is none
  int64_t step = -1;
  std::vector<std::string> damaged;  ///< newer ones that can not be used, one sentence each
  bool found() const { return !folder.empty(); }
};
CheckpointSearch latest_checkpoint(FileSystem& fs, const std::string& run_folder, CheckpointCheck check = CheckpointCheck::contents);

}  // namespace quire
