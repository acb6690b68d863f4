#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <set>

#include "model/safetensors.h"
#include "parallel/checkpoint.h"
#include "parallel/checkpoint_names.h"
#include "runtime/digest.h"
#include "runtime/error.h"

namespace quire {
namespace {

constexpr int64_t chunk_bytes = int64_t{1} << 20;  // small enough to stay in cache between checksum and write

std::string folder_being_written(const std::string& run_folder, int64_t step) {
  return checkpoint_folder(run_folder, step) + writing_suffix;
}
std::string part_name(int64_t rank_number) { return fmt::format("part-{:05}.json", rank_number); }

std::string parent_of(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

void write_durably(FileSystem& fs, const std::string& path, std::string_view text) {
  const std::unique_ptr<File> file = fs.create(path);
  file->write(std::as_bytes(std::span(text)));
  file->sync();
}

/// The tensor's bytes in order, in pieces.
template <class F>
void for_each_chunk(const Tensor& tensor, F&& use) {
  if (tensor.elements() == 0) return;
  if (!tensor.on_host()) {  // a piece at a time
    std::vector<std::byte> staged(static_cast<size_t>(std::min(chunk_bytes, tensor.bytes())));
    for (int64_t at = 0; at < tensor.bytes(); at += chunk_bytes) {
      const std::span piece = std::span(staged).first(static_cast<size_t>(std::min(chunk_bytes, tensor.bytes() - at)));
      tensor.to_host(at, piece);
      use(std::span<const std::byte>(piece));
    }
    return;
  }
  const std::byte* begin = static_cast<const std::byte*>(tensor.raw());
  const auto in_chunks = [&](const std::byte* data, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += chunk_bytes)
      use(std::span(data + at, static_cast<size_t>(std::min(chunk_bytes, bytes - at))));
  };
  if (tensor.is_contiguous()) return in_chunks(begin, tensor.bytes());
  const int dims = tensor.shape().dims();
  const int64_t element = size_of(tensor.dtype()), row_bytes = tensor.size(-1) * element;
  std::array<int64_t, 6> place{};
  for (int64_t row = tensor.elements() / tensor.size(-1); row > 0; --row) {
    int64_t offset = 0;
    for (int d = 0; d + 1 < dims; ++d) offset += place[static_cast<size_t>(d)] * tensor.stride(d);
    in_chunks(begin + offset * element, row_bytes);
    for (int d = dims - 2; d >= 0 && ++place[static_cast<size_t>(d)] == tensor.size(d); --d) place[static_cast<size_t>(d)] = 0;
  }
}

void check_tensor(const CheckpointTensor& tensor) {
  const bool kind_fits = !tensor.kind.empty() && std::all_of(tensor.kind.begin(), tensor.kind.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
  if (!kind_fits)
    fail<DataError>("checkpoint", "'{}' has the kind '{}'; allowed: lower-case letters, digits, underscores", tensor.name,
                    tensor.kind);
  if (!tensor.local.defined()) fail<StateError>("checkpoint", "{} '{}' has no values", tensor.kind, tensor.name);
  if (!tensor.local.on_host() && (tensor.local.device().kind == DeviceKind::null || !tensor.local.is_contiguous()))
    fail<StateError>("checkpoint", "{} '{}' lies on {}{}; allowed: host memory, or contiguous on a device", tensor.kind, tensor.name,
                     to_string(tensor.local.device()), tensor.local.is_contiguous() ? "" : " and is not contiguous");
  const Shape &global = tensor.global_shape, &local = tensor.local.shape();
  bool fits = local.dims() == global.dims() && static_cast<int>(tensor.offset.size()) == global.dims();
  for (int d = 0; fits && d < global.dims(); ++d) {
    const int64_t offset = tensor.offset[static_cast<size_t>(d)];
    fits = offset >= 0 && offset <= global[d] && local[d] <= global[d] - offset;
  }
  if (!fits)
    fail<ShapeError>("checkpoint", "{} '{}': a slice {} at ({}) does not lie in {}", tensor.kind, tensor.name, to_string(local),
                     comma_separated(tensor.offset), to_string(global));
}

/// `name`, or `name[0:4,2:8]` where it is a part.
std::string slice_name(const CheckpointTensor& tensor) {
  if (tensor.local.shape() == tensor.global_shape) return tensor.name;
  std::string text;
  for (int d = 0; d < tensor.global_shape.dims(); ++d) {
    const int64_t begin = tensor.offset[static_cast<size_t>(d)];
    text += fmt::format("{}{}:{}", d > 0 ? "," : "", begin, begin + tensor.local.size(d));
  }
  return fmt::format("{}[{}]", tensor.name, text);
}

/// One file with the tensors of one kind; its records join `index`.
void write_kind(FileSystem& fs, const std::string& folder, const std::string& file_name,
                const std::vector<const CheckpointTensor*>& tensors, CheckpointIndex& index) {
  std::vector<SafetensorsItem> items;
  for (const CheckpointTensor* tensor : tensors)
    items.push_back({slice_name(*tensor), tensor->local.dtype(), {tensor->local.shape().begin(), tensor->local.shape().end()}});
  SafetensorsWriter writer(fs, folder + "/" + file_name, items, {{"step", std::to_string(index.step)}, {"kind", tensors[0]->kind}});
  for (size_t i = 0; i < tensors.size(); ++i) {
    const CheckpointTensor& tensor = *tensors[i];
    Digest digest;
    for_each_chunk(tensor.local, [&](std::span<const std::byte> bytes) {
      digest.update(bytes);
      writer.write(bytes);
    });
    index.pieces.push_back({tensor.kind, tensor.name, tensor.local.dtype(), {tensor.global_shape.begin(), tensor.global_shape.end()},
                            tensor.offset, items[i].shape, file_name, writer.offset(i), tensor.local.bytes(), digest.value()});
  }
  writer.finish();
  index.files.push_back({file_name, writer.bytes(), writer.checksum()});
}

/// Removes what a crash left: nothing that a published checkpoint needs.
void clean_up(FileSystem& fs, const std::string& folder) {
  fs.sync_directory(folder);  // what is seen now is durable before anything that it replaced goes
  for (const std::string& name : fs.list(folder)) {
    const std::string path = folder + "/" + name;
    const std::string plain = name.substr(0, name.find('.'));
    if (!step_of(plain)) continue;
    if (name == plain + writing_suffix || name == plain + removing_suffix) {
      fs.remove_all(path);
    } else if (name == plain + replaced_suffix) {
      if (fs.exists(folder + "/" + plain)) fs.remove_all(path);
      else fs.rename(path, folder + "/" + plain);
    }
  }
}

/// All but the newest `keep` up to `step` go; renamed first, so that a part of one never looks like a checkpoint.
void remove_old(FileSystem& fs, const std::string& folder, int64_t step, int64_t keep) {
  std::vector<int64_t> steps;
  for (const std::string& name : fs.list(folder))
    if (const auto found = step_of(name); found && *found <= step) steps.push_back(*found);
  std::sort(steps.rbegin(), steps.rend());
  if (keep <= 0 || static_cast<int64_t>(steps.size()) <= keep) return;
  std::vector<std::string> leaving;
  for (size_t i = static_cast<size_t>(keep); i < steps.size(); ++i) {
    const std::string path = fmt::format("{}/step-{:08}", folder, steps[i]);
    leaving.push_back(path + removing_suffix);
    fs.rename(path, leaving.back());
  }
  fs.sync_directory(folder);
  for (const std::string& path : leaving) fs.remove_all(path);
}

/// The ranks' parts joined. They are removed, because the index replaces them.
CheckpointIndex join_parts(FileSystem& fs, const std::string& folder, int64_t step, int64_t ranks) {
  CheckpointIndex index{.step = step};
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const std::string path = folder + "/" + part_name(rank);
    if (!fs.exists(path)) fail<StateError>("checkpoint", "'{}' is missing: rank {} has not written its part", path, rank);
    CheckpointIndex part = parse_checkpoint_index(path, read_text(fs, path));
    if (part.step != step) fail<StateError>("checkpoint", "'{}' belongs to step {}, not {}", path, part.step, step);
    std::move(part.files.begin(), part.files.end(), std::back_inserter(index.files));
    std::move(part.pieces.begin(), part.pieces.end(), std::back_inserter(index.pieces));
  }
  check_coverage(folder, index.pieces);
  for (int64_t rank = 0; rank < ranks; ++rank) fs.remove_all(folder + "/" + part_name(rank));
  return index;
}

}  // namespace

std::string checkpoint_folder(const std::string& run_folder, int64_t step) {
  if (step < 0 || step >= 1'000'000'000'000'000'000) fail<StateError>("checkpoint", "step {} can not be saved", step);
  return fmt::format("{}/step-{:08}", checkpoints_folder(run_folder), step);
}

void begin_checkpoint(FileSystem& fs, const std::string& run_folder, int64_t step) {
  const std::string writing = folder_being_written(run_folder, step), folder = checkpoints_folder(run_folder);
  // The folders above must be durable too. Those that were there before may be someone else's, unreadable, and are only synced
  // where possible.
  std::vector<std::string> made;
  for (std::string path = folder; !fs.exists(path); path = parent_of(path)) made.push_back(path);
  fs.make_directories(folder);
  for (const std::string& path : made) fs.sync_directory(parent_of(path));
  for (const std::string& path : {run_folder, parent_of(run_folder)}) {
    try {
      fs.sync_directory(path);
    } catch (const FileError&) {
    }
  }
  clean_up(fs, folder);
  fs.make_directories(writing);
}

void write_checkpoint_part(FileSystem& fs, const std::string& run_folder, int64_t step, int64_t rank_number,
                           const std::vector<CheckpointTensor>& tensors) {
  const std::string folder = folder_being_written(run_folder, step);
  std::map<std::string, std::vector<const CheckpointTensor*>> kinds;
  std::set<std::pair<std::string, std::string>> names;
  for (const CheckpointTensor& tensor : tensors) {
    check_tensor(tensor);
    if (!names.emplace(tensor.kind, slice_name(tensor)).second)
      fail<DataError>("checkpoint", "{} '{}' is given twice", tensor.kind, slice_name(tensor));
    kinds[tensor.kind].push_back(&tensor);
  }
  CheckpointIndex part{.step = step};
  for (const auto& [kind, members] : kinds)
    write_kind(fs, folder, fmt::format("rank-{:05}-{}.safetensors", rank_number, kind), members, part);
  write_durably(fs, folder + "/" + part_name(rank_number), to_text(part));
}

std::string publish_checkpoint(FileSystem& fs, const std::string& run_folder, int64_t step, int64_t ranks, const std::string& state,
                               int64_t keep_last_n) {
  const std::string folder = checkpoints_folder(run_folder), writing = folder_being_written(run_folder, step);
  const std::string final_path = checkpoint_folder(run_folder, step), replaced = final_path + replaced_suffix;
  CheckpointIndex index = join_parts(fs, writing, step, ranks);
  write_durably(fs, writing + "/state.json", state);
  index.files.push_back({"state.json", static_cast<int64_t>(state.size()), digest_of(std::as_bytes(std::span(state)))});
  write_durably(fs, writing + "/index.json", to_text(index));
  fs.sync_directory(writing);

  const bool replaces = fs.exists(final_path);
  if (replaces) fs.rename(final_path, replaced);
  fs.rename(writing, final_path);
  fs.sync_directory(folder);
  if (replaces) fs.remove_all(replaced);
  remove_old(fs, folder, step, keep_last_n);
  return final_path;
}

void abandon_checkpoint(FileSystem& fs, const std::string& run_folder, int64_t step) {
  const std::string final_path = checkpoint_folder(run_folder, step), replaced = final_path + replaced_suffix;
  try {
    if (fs.exists(replaced) && !fs.exists(final_path)) fs.rename(replaced, final_path);
  } catch (const Error&) {  // it is found under this name too
  }
  try {
    fs.remove_all(final_path + writing_suffix);
  } catch (const Error&) {  // the next save tries again
  }
}

std::string save_checkpoint(FileSystem& fs, const std::string& run_folder, int64_t step, const std::vector<CheckpointTensor>& tensors,
                            const std::string& state, int64_t keep_last_n) {
  checkpoint_folder(run_folder, step);  // refuses impossible steps
  try {
    begin_checkpoint(fs, run_folder, step);
    write_checkpoint_part(fs, run_folder, step, 0, tensors);
    return publish_checkpoint(fs, run_folder, step, 1, state, keep_last_n);
  } catch (const std::exception&) {
    abandon_checkpoint(fs, run_folder, step);
    throw;
  }
}

}  // namespace quire
