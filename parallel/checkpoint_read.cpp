#include <algorithm>
#include <array>

#include "parallel/checkpoint.h"
#include "parallel/checkpoint_names.h"
#include "runtime/digest.h"
#include "runtime/error.h"

namespace quire {
namespace {

/// Checksum of a range of a file, read in pieces.
uint64_t checksum_of(const File& file, int64_t begin, int64_t bytes) {
  constexpr int64_t chunk_bytes = int64_t{1} << 20;
  std::vector<std::byte> buffer(static_cast<size_t>(std::min(chunk_bytes, bytes)));
  Digest digest;
  for (int64_t at = 0; at < bytes; at += chunk_bytes) {
    const std::span<std::byte> chunk = std::span(buffer).first(static_cast<size_t>(std::min(chunk_bytes, bytes - at)));
    file.read_at(begin + at, chunk);
    digest.update(chunk);
  }
  return digest.value();
}

}  // namespace

CheckpointReader::CheckpointReader(FileSystem& fs, std::string folder, CheckpointCheck check) : fs_(fs), folder_(std::move(folder)) {
  const std::string path = folder_ + "/index.json";
  index_ = parse_checkpoint_index(path, read_text(fs_, path));
  check_coverage(path, index_.pieces);
  bool has_state = false;
  for (const CheckpointFile& listed : index_.files) {
    const std::string name = folder_ + "/" + listed.name;
    const File& opened = file(listed.name);
    if (opened.size() != listed.bytes)
      fail<DataError>("checkpoint", "'{}' is damaged: it has {} bytes, {} were written", name, opened.size(), listed.bytes);
    const bool is_state = listed.name == "state.json";
    if ((check == CheckpointCheck::contents || is_state) && checksum_of(opened, 0, listed.bytes) != listed.checksum)
      fail<DataError>("checkpoint", "'{}' is damaged: its checksum is not the one that was written", name);
    if (is_state) state_ = read_text(fs_, name);
    has_state = has_state || is_state;
  }
  if (!has_state) fail<DataError>("checkpoint", "'{}' does not list state.json", path);
  verified_.assign(index_.pieces.size(), check == CheckpointCheck::contents);
  for (size_t i = 0; i < index_.pieces.size(); ++i) {
    const CheckpointPiece& piece = index_.pieces[i];
    Source& source = tensors_[{piece.kind, piece.name}];
    source.entry = {piece.kind, piece.name, piece.dtype, Shape(std::span<const int64_t>(piece.global_shape))};
    source.pieces.push_back(i);
  }
}

File& CheckpointReader::file(const std::string& name) {
  if (!files_.contains(name) && files_.size() >= 64) files_.clear();  // thousands of ranks' files would be too many at once
  std::unique_ptr<File>& opened = files_[name];
  if (!opened) opened = fs_.open(folder_ + "/" + name);
  return *opened;
}

std::vector<CheckpointReader::Entry> CheckpointReader::entries() const {
  std::vector<Entry> entries;
  for (const auto& [key, source] : tensors_) entries.push_back(source.entry);
  return entries;
}

const CheckpointReader::Source& CheckpointReader::source(const std::string& kind, const std::string& name) const {
  const auto found = tensors_.find({kind, name});
  if (found != tensors_.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [key, source] : tensors_)
    if (key.first == kind) names.push_back(key.second);
  if (names.empty()) fail<DataError>("checkpoint", "'{}' holds no tensors of the kind '{}' ('{}' is needed)", folder_, kind, name);
  const std::string near = nearest(name, names);
  fail<DataError>("checkpoint", "'{}' holds no {} '{}'{}", folder_, kind, name,
                  near.empty() ? "" : fmt::format("; the nearest is '{}'", near));
}

void CheckpointReader::read(const std::string& kind, const std::string& name, const Tensor& into) {
  const Shape& shape = source(kind, name).entry.shape;
  if (!(shape == into.shape()))
    fail<ShapeError>("checkpoint", "{} '{}' is {} in '{}', and {} is needed", kind, name, to_string(shape), folder_,
                     to_string(into.shape()));
  read(kind, name, std::vector<int64_t>(static_cast<size_t>(shape.dims()), 0), into);
}

void CheckpointReader::read(const std::string& kind, const std::string& name, const std::vector<int64_t>& offset,
                            const Tensor& into) {
  const Source& from = source(kind, name);
  const Shape& shape = from.entry.shape;
  if (from.entry.dtype != into.dtype())
    fail<DataError>("checkpoint", "{} '{}' is {} in '{}', and {} is needed", kind, name, name_of(from.entry.dtype), folder_,
                    name_of(into.dtype()));
  bool inside = into.shape().dims() == shape.dims() && static_cast<int>(offset.size()) == shape.dims();
  for (int d = 0; inside && d < shape.dims(); ++d) {
    const int64_t begin = offset[static_cast<size_t>(d)];
    inside = begin >= 0 && begin <= shape[d] && into.size(d) <= shape[d] - begin;
  }
  if (!inside)
    fail<ShapeError>("checkpoint", "{} '{}' is {} in '{}': a slice {} at ({}) does not lie inside", kind, name, to_string(shape),
                     folder_, to_string(into.shape()), comma_separated(offset));
  if (into.elements() == 0) return;
  Target target{nullptr, into.shape(), into.shape()};
  for (int d = 0; d < into.shape().dims(); ++d) target.strides[d] = into.stride(d);
  std::vector<std::byte> staged;
  if (into.on_host()) {
    target.data = static_cast<std::byte*>(into.raw());
  } else {
    require_contiguous("checkpoint", into);
    staged.resize(static_cast<size_t>(into.bytes()));
    target.data = staged.data();
  }
  for (const size_t piece : from.pieces) read_piece(piece, offset, target);
  if (!into.on_host()) into.from_host(0, staged);
}

void CheckpointReader::verify_piece(size_t number) {
  if (verified_[number]) return;
  const CheckpointPiece& piece = index_.pieces[number];
  if (checksum_of(file(piece.file), piece.file_offset, piece.bytes) != piece.checksum)
    fail<DataError>("checkpoint", "'{}/{}' is damaged: the checksum of {} '{}' is not the one that was written", folder_,
                    piece.file, piece.kind, piece.name);
  verified_[number] = true;
}

void CheckpointReader::read_piece(size_t number, const std::vector<int64_t>& offset, const Target& into) {
  const CheckpointPiece& piece = index_.pieces[number];
  const int dims = into.shape.dims();
  const int64_t element = size_of(piece.dtype);
  // The common part, counted from the piece's and from the target's first element.
  std::array<int64_t, 6> in_piece{}, in_target{}, common{}, piece_stride{};
  int64_t stride = 1;
  for (int d = dims - 1; d >= 0; --d) {
    const size_t i = static_cast<size_t>(d);
    const int64_t begin = std::max(piece.offset[i], offset[i]),
                  end = std::min(piece.offset[i] + piece.shape[i], offset[i] + into.shape[d]);
    if (begin >= end) return;
    common[i] = end - begin;
    in_piece[i] = begin - piece.offset[i];
    in_target[i] = begin - offset[i];
    piece_stride[i] = stride;
    stride *= piece.shape[i];
  }
  verify_piece(number);
  // Trailing dimensions that lie in one run on both sides are read at once.
  int outer = std::max(dims - 1, 0);
  int64_t run = dims > 0 ? common[static_cast<size_t>(dims - 1)] : 1;
  for (; outer > 0; --outer) {
    const size_t i = static_cast<size_t>(outer);
    if (common[i] != piece.shape[i] || common[i] != into.shape[outer] ||
        into.strides[outer - 1] != into.shape[outer] * into.strides[outer])
      break;
    run *= common[i - 1];
  }
  int64_t source_begin = 0, target_begin = 0;
  for (int d = 0; d < dims; ++d) {
    source_begin += in_piece[static_cast<size_t>(d)] * piece_stride[static_cast<size_t>(d)];
    target_begin += in_target[static_cast<size_t>(d)] * into.strides[d];
  }
  std::array<int64_t, 6> place{};
  File& opened = file(piece.file);
  for (bool more = true; more;) {
    int64_t source = source_begin, target = target_begin;
    for (int d = 0; d < outer; ++d) {
      source += place[static_cast<size_t>(d)] * piece_stride[static_cast<size_t>(d)];
      target += place[static_cast<size_t>(d)] * into.strides[d];
    }
    opened.read_at(piece.file_offset + source * element,
                   {into.data + target * element, static_cast<size_t>(run * element)});
    int d = outer - 1;
    for (; d >= 0 && ++place[static_cast<size_t>(d)] == common[static_cast<size_t>(d)]; --d) place[static_cast<size_t>(d)] = 0;
    more = d >= 0;
  }
}

CheckpointSearch latest_checkpoint(FileSystem& fs, const std::string& run_folder, CheckpointCheck check) {
  const std::string folder = checkpoints_folder(run_folder);
  std::vector<std::pair<int64_t, std::string>> candidates;  // a replaced one sorts before (and is tried after) the one of the same step
  for (const std::string& name : fs.list(folder)) {
    const std::string plain = name.substr(0, name.find('.'));
    const auto step = step_of(plain);
    if (!step) continue;
    if (name == plain) candidates.emplace_back(2 * *step + 1, name);
    if (name == plain + replaced_suffix) candidates.emplace_back(2 * *step, name);
  }
  std::sort(candidates.rbegin(), candidates.rend());
  CheckpointSearch search;
  for (const auto& [order, name] : candidates) {
    try {
      const CheckpointReader reader(fs, folder + "/" + name, check);
      if (reader.step() != order / 2)
        fail<DataError>("checkpoint", "'{}' holds step {}, not the one of its name", reader.folder(), reader.step());
      search.folder = reader.folder();
      search.step = reader.step();
      return search;
    } catch (const Error& error) {
      search.damaged.push_back(error.what());
    }
  }
  return search;
}

}  // namespace quire
