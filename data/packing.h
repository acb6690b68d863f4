// Documents to rows: which piece of which document stands where in each step, known without reading a token.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/corpus.h"
#include "runtime/random.h"

namespace quire {

/// Inputs are tokens [offset, offset + length) of the document, targets are tokens [offset + 1, offset + length]: the document's
/// last token (EOS) has no target (-100), and a cut piece keeps its last target, which is the first input of the next piece and not
/// scored again. So every token but a document's first is a target exactly once in an epoch.
struct Piece {
  int64_t document = 0;  ///< number in the corpus that was packed
  int64_t offset = 0;    ///< first input
  int64_t length = 0;    ///< inputs, at least 1
  int64_t valid = 0;     ///< targets that count
  bool operator==(const Piece&) const = default;
};

/// Pieces of one row, in order; their lengths sum to at most seq_len. Each is a document of its own for attention and positions.
using Row = std::vector<Piece>;

/// concat: the stream of documents cut every seq_len inputs. bfd: best-fit decreasing over a bounded buffer. single: one piece per
/// row.
enum class PackingStrategy : uint8_t { concat, bfd, single };
/// What becomes of a document longer than a row: cut into several pieces; only its first seq_len inputs kept; an error at start.
enum class Overflow : uint8_t { split, truncate, refuse };
std::string_view name_of(PackingStrategy strategy);
std::string_view name_of(Overflow overflow);
/// ConfigError with the nearest name.
PackingStrategy packing_strategy_from(std::string_view name);
Overflow overflow_from(std::string_view name);

struct PackingSettings {
  int64_t seq_len = 0;                                  ///< inputs per row, at least 1
  PackingStrategy strategy = PackingStrategy::concat;
  Overflow overflow = Overflow::split;
  int64_t buffer = 8192;                                ///< bfd: pieces that are sorted together
  uint64_t seed = 0;                                    ///< of the shuffle
  bool shuffle = true;                                  ///< false: documents in their order (evaluation)
  int64_t epochs = 0;                                   ///< passes over the documents; 0 for no end
};

/// The global batch of one step: the same on every rank and in every layout.
struct StepPlan {
  int64_t step = 0;            ///< steps planned before this one
  int64_t epoch = 0;           ///< of the first row
  std::vector<Row> rows;       ///< empty when the last epoch is over
  int64_t tokens = 0;          ///< inputs
  int64_t valid = 0;           ///< targets that count: the loss's denominator
  int64_t documents = 0;       ///< documents that begin in this step
  int64_t pieces = 0;          ///< documents in attention's sense
  int64_t dropped_tokens = 0;  ///< inputs that overflow = truncate left out of this step's documents
  uint64_t digest = 0;         ///< of the rows
  bool empty() const { return rows.empty(); }
};

/// Where a PackingPlan stands: a few numbers, whatever the corpus' size, the same for every layout and number of ranks.
struct PackingState {
  uint64_t fingerprint = 0;  ///< of corpus and settings; 0 for a fresh start
  int64_t step = 0;
  int64_t epoch = 0;
  int64_t position = 0;      ///< place in the epoch's order of the next document (bfd: of the buffer's first)
  int64_t offset = 0;        ///< inputs of that document already given
  int64_t row = 0;           ///< bfd: rows of the buffer already given
  bool operator==(const PackingState&) const = default;
  /// One JSON object, and back (DataError).
  std::string to_json() const;
  static PackingState from_json(std::string_view json);
};

/// The stream of rows of a corpus: a pure function of corpus, settings and seed, bounded in memory.
///
/// Rows hold documents of one epoch; an epoch's last row may be short. A step takes the next rows, across epochs. When `epochs` are
/// over the last step is smaller (fewer rows), nothing is dropped or repeated, and later steps are empty. Not thread-safe.
class PackingPlan {
 public:
  /// ConfigError for settings out of range; DataError for an empty corpus or, with overflow = refuse, a document longer than a row.
  PackingPlan(std::shared_ptr<const Corpus> corpus, const PackingSettings& settings);

  /// The next `global_batch_size` rows. No token is read (masks are, for cut documents of a corpus with masks).
  StepPlan next_step(int64_t global_batch_size);

  PackingState state() const { return state_; }
  /// Continues exactly where `state` was taken. ConfigError where corpus or settings differ, DataError for impossible values.
  void restore(const PackingState& state);

  const PackingSettings& settings() const { return settings_; }
  const Corpus& corpus() const { return *corpus_; }

 private:
  int64_t document_at(int64_t position) const;
  int64_t packed_length(const DocumentInfo& document) const;
  bool next_row(Row& row);
  bool finished() const { return settings_.epochs > 0 && state_.epoch >= settings_.epochs; }
  void concat_row(Row& row);
  void single_row(Row& row);
  void bfd_row(Row& row);
  void fill_buffer();
  Piece take_piece(int64_t& position, int64_t& offset, int64_t room) const;
  void settle();
  void start_epoch();

  std::shared_ptr<const Corpus> corpus_;
  PackingSettings settings_;
  PackingState state_;
  std::optional<Permutation> order_;   ///< of this epoch
  std::vector<Row> buffer_;            ///< bfd: rows of the current buffer in the order given
  int64_t buffer_end_position_ = 0, buffer_end_offset_ = 0;
};

}  // namespace quire
