// Corpora, folders and checks shared by the data tests.
#pragma once
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>

#include "check.h"
#include "data/loader.h"
#include "data/shard.h"

namespace quire::test {

/// A folder that is removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    static std::atomic<int> next{0};
    path_ = (std::filesystem::temp_directory_path() / ("quire-test-" + std::to_string(getpid()) + "-" + std::to_string(next++)))
                .string();
    std::filesystem::create_directories(path_);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline void write_file(const std::string& path, std::string_view content) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::filesystem::remove(path);  // truncating instead would make some file systems wait for the disk
  std::ofstream(path, std::ios::binary) << content;
}

inline std::string read_file(const std::string& path) { return read_text(disk(), path); }

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

/// Documents as plain vectors, the literal form that everything else is compared with.
struct PlainDocument {
  std::vector<int32_t> tokens;  ///< EOS included
  std::vector<uint8_t> mask;    ///< empty: all ones
  bool operator==(const PlainDocument&) const = default;
};

constexpr int32_t test_eos = 99;

/// Random documents of these lengths over ids [0, 99), EOS 99 at their ends. `mask_share` of them have a random mask.
inline std::vector<PlainDocument> random_documents(std::mt19937_64& random, const std::vector<int64_t>& lengths,
                                                   double mask_share = 0) {
  std::vector<PlainDocument> documents;
  for (const int64_t length : lengths) {
    PlainDocument d;
    for (int64_t i = 0; i + 1 < length; ++i) d.tokens.push_back(static_cast<int32_t>(random() % 99));
    d.tokens.push_back(test_eos);
    if (static_cast<double>(random() % 1000) < mask_share * 1000)
      for (int64_t i = 0; i < length; ++i) d.mask.push_back(static_cast<uint8_t>(random() % 2));
    documents.push_back(std::move(d));
  }
  return documents;
}

inline CorpusInfo test_info() {
  CorpusInfo info;
  info.path = "test";
  info.vocabulary_size = 100;
  info.eos = test_eos;
  return info;
}

inline std::shared_ptr<const Corpus> corpus_of(const std::vector<PlainDocument>& documents) {
  auto corpus = std::make_shared<MemoryCorpus>(test_info());
  for (const PlainDocument& d : documents) corpus->add(d.tokens, d.mask);
  return corpus;
}

/// Token i of a document counts as a target.
inline bool counts(const PlainDocument& d, size_t i) { return i > 0 && (d.mask.empty() || d.mask[i] != 0); }

inline int64_t valid_of(const PlainDocument& d) {
  int64_t valid = 0;
  for (size_t i = 0; i < d.tokens.size(); ++i) valid += counts(d, i);
  return valid;
}

/// Checks every number of a step and its microbatches (this share's) against the documents, token by token.
inline void check_step(const std::vector<PlainDocument>& documents, const LoadedStep& step, const LoaderSettings& settings) {
  int64_t tokens = 0, valid = 0, pieces = 0, begun = 0;
  for (const Row& row : step.plan.rows) {
    int64_t inputs = 0;
    for (const Piece& piece : row) {
      const PlainDocument& d = documents.at(static_cast<size_t>(piece.document));
      BOOST_REQUIRE_GE(piece.length, 1);
      BOOST_REQUIRE_GE(piece.offset, 0);
      BOOST_REQUIRE_LE(piece.offset + piece.length, static_cast<int64_t>(d.tokens.size()));
      int64_t expected = 0;
      for (int64_t i = piece.offset + 1; i <= piece.offset + piece.length && i < static_cast<int64_t>(d.tokens.size()); ++i)
        expected += counts(d, static_cast<size_t>(i));
      BOOST_REQUIRE_EQUAL(piece.valid, expected);
      inputs += piece.length;
      valid += expected;
      begun += piece.offset == 0;
    }
    BOOST_REQUIRE_LE(inputs, settings.packing.seq_len);
    BOOST_REQUIRE_GE(inputs, 1);
    tokens += inputs;
    pieces += static_cast<int64_t>(row.size());
  }
  BOOST_REQUIRE_EQUAL(step.plan.tokens, tokens);
  BOOST_REQUIRE_EQUAL(step.plan.valid, valid);
  BOOST_REQUIRE_EQUAL(step.plan.pieces, pieces);
  BOOST_REQUIRE_EQUAL(step.plan.documents, begun);
  BOOST_REQUIRE_LE(static_cast<int64_t>(step.plan.rows.size()), settings.global_batch_size);

  for (const HostBatch& batch : step.microbatches) {
    BOOST_REQUIRE_EQUAL(batch.rows, static_cast<int64_t>(batch.plan.size()));
    BOOST_REQUIRE_LE(batch.rows, settings.microbatch_size);
    BOOST_REQUIRE_GE(batch.rows, 1);
    for (size_t r = 0; r < batch.plan.size(); ++r)
      BOOST_REQUIRE(batch.plan[r] == step.plan.rows.at(static_cast<size_t>(batch.index * settings.microbatch_size) + r));
    std::vector<int32_t> expected_tokens, expected_targets, starts;
    int64_t expected_valid = 0;
    for (const Row& row : batch.plan)
      for (const Piece& piece : row) {
        const PlainDocument& d = documents.at(static_cast<size_t>(piece.document));
        const int32_t start = static_cast<int32_t>(expected_tokens.size());
        for (int64_t i = piece.offset; i < piece.offset + piece.length; ++i) {
          const size_t next = static_cast<size_t>(i) + 1;
          const bool counted = next < d.tokens.size() && counts(d, next);
          expected_tokens.push_back(d.tokens[static_cast<size_t>(i)]);
          expected_targets.push_back(counted ? d.tokens[next] : ignored_target);
          starts.push_back(start);
          expected_valid += counted;
        }
      }
    BOOST_REQUIRE(batch.tokens == expected_tokens);
    BOOST_REQUIRE(batch.targets == expected_targets);
    BOOST_REQUIRE(batch.documents == Documents::from_starts(starts));
    BOOST_REQUIRE_EQUAL(batch.valid, expected_valid);
  }
}

/// (document, token) -> how often that token was an input, and how often a counted target.
struct Uses {
  std::map<std::pair<int64_t, int64_t>, int> inputs, targets;
  void add(const std::vector<PlainDocument>& documents, const std::vector<Row>& rows) {
    for (const Row& row : rows)
      for (const Piece& piece : row)
        for (int64_t i = piece.offset; i < piece.offset + piece.length; ++i) {
          const PlainDocument& d = documents.at(static_cast<size_t>(piece.document));
          ++inputs[{piece.document, i}];
          if (i + 1 < static_cast<int64_t>(d.tokens.size()) && counts(d, static_cast<size_t>(i + 1)))
            ++targets[{piece.document, i + 1}];
        }
  }
  /// Every token an input `times`, every token that counts a target `times`.
  bool complete(const std::vector<PlainDocument>& documents, int times) const {
    size_t expected_inputs = 0, expected_targets = 0;
    for (const PlainDocument& d : documents) {
      expected_inputs += d.tokens.size();
      expected_targets += static_cast<size_t>(valid_of(d));
    }
    const auto all = [&](const auto& uses) {
      return std::all_of(uses.begin(), uses.end(), [&](const auto& use) { return use.second == times; });
    };
    return inputs.size() == expected_inputs && targets.size() == expected_targets && all(inputs) && all(targets);
  }
};

/// A file system that passes everything on to another until `fail_at` operations that change something have been made; that one
/// fails with FileError. `dead`: nothing works any more after it, as after kill -9, not even tidying up.
class FailingFileSystem final : public FileSystem {
 public:
  FailingFileSystem(FileSystem& below, int64_t fail_at, bool dead) : below_(below), left_(fail_at), dead_(dead) {}
  bool failed() const { return failed_; }

  std::unique_ptr<File> open(const std::string& path) override { return below_.open(path); }
  std::unique_ptr<File> create(const std::string& path) override {
    count();
    return std::make_unique<Wrapped>(*this, below_.create(path));
  }
  std::unique_ptr<File> append(const std::string& path) override {
    count();
    return std::make_unique<Wrapped>(*this, below_.append(path));
  }
  bool exists(const std::string& path) override { return below_.exists(path); }
  std::vector<std::string> list(const std::string& directory) override { return below_.list(directory); }
  void make_directories(const std::string& path) override { count(); below_.make_directories(path); }
  void rename(const std::string& from, const std::string& to) override { count(); below_.rename(from, to); }
  void remove_all(const std::string& path) override { count(); below_.remove_all(path); }
  void sync_directory(const std::string&) override { count(); }  // durability is not what these tests are about, and slow

 private:
  struct Wrapped final : File {
    Wrapped(FailingFileSystem& owner, std::unique_ptr<File> file) : owner_(owner), file_(std::move(file)) {}
    void write(std::span<const std::byte> bytes) override { owner_.count(); file_->write(bytes); }
    void write_at(int64_t offset, std::span<const std::byte> bytes) override { owner_.count(); file_->write_at(offset, bytes); }
    void read_at(int64_t offset, std::span<std::byte> bytes) const override { file_->read_at(offset, bytes); }
    int64_t size() const override { return file_->size(); }
    void sync() override { owner_.count(); }
    FailingFileSystem& owner_;
    std::unique_ptr<File> file_;
  };
  void count() {
    if (failed_ && dead_) fail<FileError>("file", "dead");
    if (failed_ || left_-- > 0) return;
    failed_ = true;
    fail<FileError>("file", "No space left on device");
  }
  FileSystem& below_;
  int64_t left_;
  bool dead_, failed_ = false;
};

/// The machine's files without the waiting for durability.
inline FileSystem& unsynced_disk() {
  static FailingFileSystem files(disk(), std::numeric_limits<int64_t>::max(), false);
  return files;
}

}  // namespace quire::test
