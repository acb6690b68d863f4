#include "parallel/checkpoint.h"

#include "check.h"
#include "files.h"
#include "model/safetensors.h"
#include "runtime/digest.h"
#include "runtime/faulty_file_system.h"

using namespace quire;
using namespace quire::test;

namespace {

/// Values that tell where they came from.
Tensor ramp(Rank& rank, const Shape& shape, float first) {
  std::vector<float> values(static_cast<size_t>(shape.elements()));
  for (float& value : values) value = first++;
  return Tensor::from<float>(rank, shape, values);
}

CheckpointTensor whole(const std::string& kind, const std::string& name, const Tensor& tensor) {
  return {name, kind, tensor.shape(), std::vector<int64_t>(static_cast<size_t>(tensor.shape().dims()), 0), tensor};
}

/// The part of `tensor` at [begin, end) in each dimension: a view.
Tensor part_of(Tensor tensor, const std::vector<int64_t>& begin, const std::vector<int64_t>& end) {
  for (size_t d = 0; d < begin.size(); ++d) tensor = tensor.slice(static_cast<int>(d), begin[d], end[d]);
  return tensor;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(checkpoint)

BOOST_AUTO_TEST_CASE(what_is_saved_is_read_back) {
  Rank rank;
  FaultyFileSystem fs;
  const Tensor a = ramp(rank, {3, 4}, 1), b = ramp(rank, {5}, 100);
  const Tensor scalar = Tensor::from<int64_t>(rank, {}, std::vector<int64_t>{42});
  const Tensor half = Tensor::from<bf16>(rank, {2, 1, 2}, std::vector<bf16>{bf16(1), bf16(2), bf16(3), bf16(4)});
  const Tensor none = Tensor::zeros(rank, {0, 4}, DType::f32);
  const std::string state = "{\"loader\": [1, 2, 3]}";
  const std::string folder =
      save_checkpoint(fs, "runs/a", 30,
                      {whole("parameter", "a.weight", a), whole("moment1", "a.weight", b), whole("parameter", "count", scalar),
                       whole("parameter", "half", half), whole("parameter", "none", none)},
                      state);
  BOOST_TEST(folder == "runs/a/checkpoints/step-00000030");
  BOOST_TEST(fs.list("runs/a/checkpoints") == std::vector<std::string>({"step-00000030"}), boost::test_tools::per_element());
  BOOST_TEST(fs.list(folder) == std::vector<std::string>({"index.json", "rank-00000-moment1.safetensors",
                                                          "rank-00000-parameter.safetensors", "state.json"}),
             boost::test_tools::per_element());
  const CheckpointSearch latest = latest_checkpoint(fs, "runs/a");
  BOOST_TEST(latest.folder == folder);
  BOOST_TEST(latest.step == 30);
  BOOST_TEST(latest.damaged.empty());
  for (const CheckpointCheck check : {CheckpointCheck::sizes, CheckpointCheck::contents}) {
    CheckpointReader reader(fs, folder, check);
    BOOST_TEST(reader.step() == 30);
    BOOST_TEST(reader.state() == state);
    BOOST_TEST(reader.entries().size() == 5u);
    const Tensor a2 = Tensor::zeros(rank, {3, 4}, DType::f32), b2 = Tensor::zeros(rank, {5}, DType::f32);
    const Tensor scalar2 = Tensor::zeros(rank, {}, DType::i64), half2 = Tensor::zeros(rank, {2, 1, 2}, DType::bf16);
    reader.read("parameter", "a.weight", a2);
    reader.read("moment1", "a.weight", b2);
    reader.read("parameter", "count", scalar2);
    reader.read("parameter", "half", half2);
    reader.read("parameter", "none", none);
    BOOST_TEST((a2.to_vector<float>() == a.to_vector<float>()));
    BOOST_TEST((b2.to_vector<float>() == b.to_vector<float>()));
    BOOST_TEST(scalar2.to_vector<int64_t>()[0] == 42);
    BOOST_TEST(static_cast<float>(half2.to_vector<bf16>()[3]) == 4.f);
    check_error<DataError>([&] { reader.read("parameter", "a.weigth", a2); }, {folder, "a.weigth", "nearest is 'a.weight'"});
    check_error<DataError>([&] { reader.read("moment2", "a.weight", a2); }, {"moment2", "a.weight"});
    check_error<DataError>([&] { reader.read("parameter", "count", {}, Tensor::zeros(rank, {}, DType::i32)); },
                           {"'count'", "i64", "i32"});
    check_error<ShapeError>([&] { reader.read("parameter", "a.weight", b2); }, {"a.weight", "(3,4)", "(5)"});
    check_error<ShapeError>([&] { reader.read("parameter", "a.weight", {1, 0}, a2); }, {"a.weight", "(1,0)"});
  }
  // Other tools can read the files too.
  BOOST_TEST((Safetensors(fs, folder + "/rank-00000-parameter.safetensors").at("a.weight").shape == std::vector<int64_t>({3, 4})));
}

BOOST_AUTO_TEST_CASE(slices_written_by_three_ranks_are_read_by_two) {
  Rank rank;
  FaultyFileSystem fs;
  const Tensor rows = ramp(rank, {7, 4}, 1), columns = ramp(rank, {4, 9}, 100), single = ramp(rank, {6}, 500);
  begin_checkpoint(fs, "run", 5);
  for (int64_t i = 0; i < 3; ++i) {
    const int64_t r0 = 7 * i / 3, r1 = 7 * (i + 1) / 3, c0 = 3 * i, c1 = 3 * i + 3;
    std::vector<CheckpointTensor> mine = {{"rows", "master", rows.shape(), {r0, 0}, part_of(rows, {r0, 0}, {r1, 4})},
                                          {"columns", "master", columns.shape(), {0, c0}, part_of(columns, {0, c0}, {4, c1})}};
    if (i == 1) mine.push_back(whole("master", "single", single));
    write_checkpoint_part(fs, "run", 5, i, mine);
  }
  const std::string folder = publish_checkpoint(fs, "run", 5, 3, "{}");
  BOOST_TEST(!fs.exists(folder + "/part-00000.json"));
  for (int64_t i = 0; i < 2; ++i) {
    CheckpointReader reader(fs, folder, CheckpointCheck::sizes);
    const int64_t r0 = 7 * i / 2, r1 = 7 * (i + 1) / 2, c0 = 9 * i / 2, c1 = 9 * (i + 1) / 2;
    const Tensor my_rows = Tensor::zeros(rank, {r1 - r0, 4}, DType::f32), my_columns = Tensor::zeros(rank, {4, c1 - c0}, DType::f32);
    reader.read("master", "rows", {r0, 0}, my_rows);
    reader.read("master", "columns", {0, c0}, my_columns);
    BOOST_TEST((my_rows.to_vector<float>() == part_of(rows, {r0, 0}, {r1, 4}).to_vector<float>()));
    BOOST_TEST((my_columns.to_vector<float>() == part_of(columns, {0, c0}, {4, c1}).to_vector<float>()));
  }
}

BOOST_AUTO_TEST_CASE(any_cut_is_read_by_any_other) {
  Rank rank;
  std::mt19937_64 random(17);
  for (int round = 0; round < 60; ++round) {
    FaultyFileSystem fs;
    const int dims = 1 + static_cast<int>(random() % 4);
    Shape shape;
    std::vector<std::vector<int64_t>> cuts;
    for (int d = 0; d < dims; ++d) {
      shape.push_back(1 + static_cast<int64_t>(random() % 6));
      std::vector<int64_t> cut = {0, shape[d]};
      if (random() % 2) cut.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(shape[d] + 1)));
      std::sort(cut.begin(), cut.end());
      cuts.push_back(cut);
    }
    const Tensor tensor = ramp(rank, shape, 1);
    std::vector<CheckpointTensor> pieces;
    std::vector<size_t> place(static_cast<size_t>(dims), 0);
    for (bool more = true; more;) {
      std::vector<int64_t> begin, end;
      for (size_t d = 0; d < place.size(); ++d) begin.push_back(cuts[d][place[d]]), end.push_back(cuts[d][place[d] + 1]);
      pieces.push_back({"t", "parameter", shape, begin, part_of(tensor, begin, end)});
      size_t d = 0;
      while (d < place.size() && ++place[d] + 1 == cuts[d].size()) place[d++] = 0;
      more = d < place.size();
    }
    std::erase_if(pieces, [&](const CheckpointTensor& piece) { return piece.local.elements() == 0 && pieces.size() > 1; });
    CheckpointReader reader(fs, save_checkpoint(fs, "run", 1, pieces, ""), CheckpointCheck::sizes);
    for (int read = 0; read < 5; ++read) {
      std::vector<int64_t> begin, end, frame;
      Shape outer;
      for (int d = 0; d < dims; ++d) {
        begin.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(shape[d])));
        end.push_back(begin.back() + 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(shape[d] - begin.back())));
        frame.push_back(static_cast<int64_t>(random() % 2));
        outer.push_back(end.back() - begin.back() + 2 * frame.back());
      }
      // Into a view with a frame around it, which must stay untouched.
      const Tensor around = ramp(rank, outer, -1000);
      std::vector<int64_t> inner_begin = frame, inner_end;
      for (int d = 0; d < dims; ++d) inner_end.push_back(outer[d] - frame[static_cast<size_t>(d)]);
      const Tensor expected_frame = ramp(rank, outer, -1000);
      const Tensor target = part_of(around, inner_begin, inner_end);
      reader.read("parameter", "t", begin, target);
      BOOST_TEST((target.to_vector<float>() == part_of(tensor, begin, end).to_vector<float>()));
      copy(rank, part_of(expected_frame, inner_begin, inner_end), target);
      BOOST_TEST((around.to_vector<float>() == expected_frame.to_vector<float>()));
    }
  }
}

BOOST_AUTO_TEST_CASE(slices_must_cover_each_tensor_exactly_once) {
  Rank rank;
  FaultyFileSystem fs;
  const Tensor tensor = ramp(rank, {6, 2}, 1);
  const auto slice = [&](int64_t begin, int64_t end) {
    return CheckpointTensor{"t", "master", {6, 2}, {begin, 0}, part_of(tensor, {begin, 0}, {end, 2})};
  };
  save_checkpoint(fs, "run", 1, {slice(0, 4), slice(4, 6)}, "");
  check_error<DataError>([&] { save_checkpoint(fs, "run", 2, {slice(0, 4)}, ""); }, {"'t'", "8 of 12"});
  check_error<DataError>([&] { save_checkpoint(fs, "run", 2, {slice(0, 4), slice(3, 6)}, ""); }, {"'t'", "overlap"});
  check_error<DataError>([&] { save_checkpoint(fs, "run", 2, {slice(0, 3), slice(0, 3)}, ""); }, {"'t[0:3,0:2]'", "twice"});
  CheckpointTensor other = slice(4, 6);
  other.global_shape = {7, 2};
  check_error<DataError>([&] { save_checkpoint(fs, "run", 2, {slice(0, 4), other}, ""); }, {"'t'", "disagree"});
  other = slice(4, 6);
  other.offset = {5, 0};
  check_error<ShapeError>([&] { save_checkpoint(fs, "run", 2, {slice(0, 4), other}, ""); }, {"'t'", "(5,0)", "(6,2)"});
  other = slice(0, 6);
  other.kind = "../x";
  check_error<DataError>([&] { save_checkpoint(fs, "run", 2, {other}, ""); }, {"../x"});
  check_error<StateError>([&] { save_checkpoint(fs, "run", -2, {}, ""); }, {"-2"});
  BOOST_TEST(fs.list("run/checkpoints") == std::vector<std::string>({"step-00000001"}), boost::test_tools::per_element());
  begin_checkpoint(fs, "run", 2);
  write_checkpoint_part(fs, "run", 2, 0, {slice(0, 4)});
  check_error<StateError>([&] { publish_checkpoint(fs, "run", 2, 2, ""); }, {"rank 1", "part-00001.json"});
  write_checkpoint_part(fs, "run", 2, 1, {slice(4, 6)});
  publish_checkpoint(fs, "run", 2, 2, "");
  BOOST_TEST(latest_checkpoint(fs, "run").step == 2);
}

BOOST_AUTO_TEST_CASE(the_last_n_are_kept) {
  Rank rank;
  FaultyFileSystem fs;
  const Tensor tensor = ramp(rank, {2}, 1);
  const auto save = [&](int64_t step, int64_t keep) {
    save_checkpoint(fs, "run", step, {whole("parameter", "t", tensor)}, std::to_string(step), keep);
  };
  for (int64_t step = 10; step <= 50; step += 10) save(step, 2);
  BOOST_TEST(fs.list("run/checkpoints") == std::vector<std::string>({"step-00000040", "step-00000050"}),
             boost::test_tools::per_element());
  save(60, 0);
  BOOST_TEST(fs.list("run/checkpoints").size() == 3u);
  save(20, 1);  // went back: later steps are not this one's to delete
  BOOST_TEST(fs.list("run/checkpoints").size() == 4u);
  save(60, 1);  // the same step again
  BOOST_TEST(fs.list("run/checkpoints") == std::vector<std::string>({"step-00000060"}), boost::test_tools::per_element());
  BOOST_TEST(latest_checkpoint(fs, "run").step == 60);
  BOOST_TEST(!latest_checkpoint(fs, "elsewhere").found());
  save(123456789, 0);
  BOOST_TEST(latest_checkpoint(fs, "run").step == 123456789);
}

BOOST_AUTO_TEST_CASE(leftovers_are_cleaned_at_the_next_save) {
  Rank rank;
  FaultyFileSystem fs;
  const Tensor tensor = ramp(rank, {2}, 1);
  const auto save = [&](int64_t step) { save_checkpoint(fs, "run", step, {whole("parameter", "t", tensor)}, ""); };
  save(10);
  fs.rename("run/checkpoints/step-00000010", "run/checkpoints/step-00000010.replaced");
  BOOST_TEST(latest_checkpoint(fs, "run").step == 10);  // found under this name too
  fs.make_directories("run/checkpoints/step-00000011.writing/deep");
  fs.make_directories("run/checkpoints/step-00000009.removing");
  fs.make_directories("run/checkpoints/mine");
  save(12);
  BOOST_TEST(fs.list("run/checkpoints") == std::vector<std::string>({"mine", "step-00000010", "step-00000012"}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(every_damage_is_detected_and_the_one_before_is_used) {
  Rank rank;
  FaultyFileSystem start;
  const Tensor tensor = ramp(rank, {9}, 1);
  for (const int64_t step : {10, 20})
    save_checkpoint(start, "run", step, {whole("parameter", "t", tensor), whole("moment1", "t", tensor)}, "{\"x\":1}");
  const std::string folder = "run/checkpoints/step-00000020";
  std::mt19937_64 random(23);
  for (const std::string& name : start.list(folder)) {
    const std::string path = folder + "/" + name, good = read_text(start, path);
    for (size_t round = 0; round < 80; ++round) {
      const auto fs = start.copy();
      std::string bad = good;
      if (round == 0) fs->remove_all(path);
      else if (round < 20) bad.resize(random() % good.size());
      else if (round < 22) bad += '\0';
      else bad[random() % bad.size()] ^= static_cast<char>(1u << (random() % 8));
      if (round > 0) put_text(*fs, path, bad);
      const CheckpointSearch found = latest_checkpoint(*fs, "run");
      BOOST_TEST_REQUIRE(found.step == 10);
      BOOST_TEST_REQUIRE(found.damaged.size() == 1u);
      BOOST_TEST_REQUIRE(found.damaged[0].find(folder) != std::string::npos);
    }
  }
  // A slice's own checksum catches a flipped bit that an opening by sizes lets pass.
  const std::string path = folder + "/rank-00000-moment1.safetensors";
  std::string bad = read_text(start, path);
  bad.back() ^= 1;
  put_text(start, path, bad);
  BOOST_TEST(latest_checkpoint(start, "run", CheckpointCheck::sizes).step == 20);
  CheckpointReader reader(start, folder, CheckpointCheck::sizes);
  reader.read("parameter", "t", tensor);
  const Tensor one = Tensor::zeros(rank, {1}, DType::f32);
  check_error<DataError>([&] { reader.read("moment1", "t", {0}, one); }, {path, "moment1 't'", "checksum"});
  start.remove_all("run/checkpoints/step-00000010");
  const CheckpointSearch none = latest_checkpoint(start, "run");
  BOOST_TEST(!none.found());
  BOOST_TEST(none.damaged.size() == 1u);
}

BOOST_AUTO_TEST_CASE(an_index_that_lies_is_refused) {
  CheckpointIndex index{.step = 3};
  index.files = {{"f", 16, 1}, {"state.json", 0, 2}};
  index.pieces = {{"parameter", "t", DType::f32, {4}, {0}, {4}, "f", 0, 16, 7}};
  BOOST_TEST((parse_checkpoint_index("i", to_text(index)) == index));
  const auto refuse = [&](auto&& change, std::initializer_list<std::string> parts) {
    CheckpointIndex other = index;
    change(other);
    check_error<DataError>([&] { check_coverage("i", parse_checkpoint_index("i", to_text(other)).pieces); }, parts);
  };
  refuse([](CheckpointIndex& i) { i.pieces[0].file = "../../etc/passwd"; }, {"'i'", "../../etc/passwd"});
  refuse([](CheckpointIndex& i) { i.files[0].name = ".."; }, {"'..'"});
  refuse([](CheckpointIndex& i) { i.pieces[0].file = "g"; }, {"'g'", "not listed"});
  refuse([](CheckpointIndex& i) { i.pieces[0].file_offset = 1; }, {"'t'", "ends after"});
  refuse([](CheckpointIndex& i) { i.pieces[0].bytes = 12; }, {"'t'", "12"});
  refuse([](CheckpointIndex& i) { i.pieces[0].offset = {1}; }, {"'t'", "inside"});
  refuse([](CheckpointIndex& i) { i.pieces[0].global_shape = {5}; }, {"'t'", "4 of 5"});
  refuse([](CheckpointIndex& i) { i.pieces[0].shape = {int64_t{1} << 40, int64_t{1} << 40}; }, {"'i'"});
  refuse([](CheckpointIndex& i) { i.pieces[0].file_offset = -4; }, {"file_offset", "-4"});
  refuse([](CheckpointIndex& i) { i.pieces.push_back(i.pieces[0]); }, {"overlap"});
  refuse([](CheckpointIndex& i) { i.files.push_back(i.files[0]); }, {"'f'", "twice"});
  const std::string text = to_text(index);
  for (size_t length = 0; length < text.size(); ++length)
    check_error<DataError>([&] { parse_checkpoint_index("i", text.substr(0, length)); }, {"'i'"});
}

BOOST_AUTO_TEST_SUITE_END()
