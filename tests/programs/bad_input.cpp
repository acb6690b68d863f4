// Bad input to the programs: one line in the house form on standard error, exit status 1, and what was there before is still there, byte by byte.
#include <sys/mount.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "programs/fixture.h"

using namespace quire;
using namespace quire::test;

namespace {

/// Exit status 1 and one line `[where] ...` that holds every one of `parts`.
void check_refused(const ProgramResult& result, const std::vector<std::string>& parts, const std::string& what) {
  BOOST_TEST(result.status == 1, what << ": status " << result.status << ", " << result.err);
  const std::string& line = result.err;
  const bool one_line = !line.empty() && line.find('\n') == line.size() - 1;
  BOOST_TEST((one_line && line[0] == '[' && line.find("] ") != std::string::npos), what << ": not one line in the house form: '" << line << "'");
  for (const std::string& part : parts) BOOST_TEST(line.find(part) != std::string::npos, what << ": '" << line << "' lacks '" << part << "'");
}

/// The same, and no file below `folder` has changed.
void refuses(const std::string& folder, const std::vector<std::string>& args, const std::vector<std::string>& parts, const std::string& what,
             const ProgramOptions& options = {}) {
  const auto before = files_of(folder);
  check_refused(run_program(args, options), parts, what);
  const auto after = files_of(folder);
  for (const auto& [path, bytes] : before) BOOST_TEST((after.contains(path) && after.at(path) == bytes), what << ": " << path << " is not what it was");
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  BOOST_REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

std::string flipped(std::string bytes, size_t at) {
  bytes.at(at) = static_cast<char>(bytes[at] ^ 0x55);
  return bytes;
}

void damage(const std::string& path, const std::function<std::string(std::string)>& change) { store(path, change(contents(path))); }

}  // namespace

BOOST_AUTO_TEST_SUITE(bad_input)

BOOST_AUTO_TEST_CASE(arguments) {
  for (const char* name : {"train", "documents", "selfcheck", "generate", "prepare", "plan"}) {
    check_refused(run_program({tool(name)}), {std::string("[") + name + "]", "required", "--help"}, name);
    check_refused(run_program({tool(name), "--nonsense"}), {std::string("[") + name + "]", "--help"}, name);
    BOOST_TEST(run_well({tool(name), "--help"}).out.find("Usage") != std::string::npos);
  }
}

BOOST_AUTO_TEST_CASE(configs) {
  Workshop workshop;
  const std::string folder = workshop.path(), good = small_toml, path = workshop.path("bad.toml");
  const auto with = [&](const std::string& text, const std::vector<std::string>& parts, const std::string& what) {
    store(path, text);
    for (const char* name : {"train", "selfcheck", "documents"}) refuses(folder, {tool(name), path}, parts, std::string(name) + ", " + what);
  };
  refuses(folder, {tool("train"), workshop.path("missing.toml")}, {"missing.toml"}, "missing config");
  refuses(folder, {tool("train"), folder}, {folder}, "a folder as config");
  with("", {"bad.toml", "data.dataset_path"}, "empty");
  with("[model\ndim = 3\n", {"bad.toml:1", "TOML"}, "broken TOML");
  with(good.substr(0, good.find("\"corpus\"") + 4), {"bad.toml:", "TOML"}, "truncated");
  with(std::string("\x7f" "ELF\x02\x01\x01\0\0\0\0\0", 12), {"bad.toml:1"}, "a binary file");
  with("[model]\nname = \"\xff\xfe\"\n", {"bad.toml"}, "not UTF-8");
  with(replaced(good, "n_layers", "n_layer"), {"model.n_layer", "n_layers", "bad.toml:5"}, "unknown key");
  with(replaced(good, "[train]", "[trian]"), {"trian", "train"}, "unknown section");
  with(replaced(good, "dim = 16", "dim = \"16\""), {"bad.toml:4", "model.dim"}, "mistyped value");
  with(replaced(good, "\"bfd\"", "\"bdf\""), {"data.strategy", "bdf", "bfd"}, "mistyped choice");
  with(replaced(good, "lr = 1e-2", "lr = -1.0"), {"optimizer.lr"}, "out of range");
  with(replaced(good, "microbatch_size = 2", "microbatch_size = 3"), {"train.microbatch_size", "4"}, "contradictory batch");
  with(replaced(good, "eval_fraction = 0.1", "eval_fraction = 0.0"), {"eval.interval"}, "evaluation without held-out documents");
  with(replaced(good, "\"bfd\"", "\"concat\"\noverflow = \"refuse\""), {"data.overflow", "concat"}, "contradictory overflow");
  with(replaced(good, "vocab_size = 258", "vocab_size = 100"), {"model.vocab_size", "258"}, "vocabulary smaller than the corpus");
  with(replaced(good, "n_heads = 2", "n_heads = 3"), {"bad.toml", "model."}, "heads that do not divide");
  const std::string small = workshop.path("small.toml");
  refuses(folder, {tool("train"), small, "model.n_layer=3"}, {"command line", "model.n_layer", "n_layers"}, "unknown override");
  refuses(folder, {tool("train"), small, "model.dim"}, {"model.dim"}, "override without value");
  refuses(folder, {tool("train"), small, "train.seed=x"}, {"train.seed"}, "mistyped override");
  refuses(folder, {tool("train"), small, "distributed.tp=2"}, {"distributed.tp"}, "what is not there yet");
  refuses(folder, {tool("train"), small, "run.instruction_set=avx9"}, {"avx9"}, "unknown instruction set");
  refuses(folder, {tool("train"), small, "run.dir=" + small}, {small}, "a file as run folder");
}

BOOST_AUTO_TEST_CASE(schedules) {
  Workshop workshop;
  const std::string folder = workshop.path(), file = workshop.path("mine.csv"), config = workshop.path("mine.toml");
  store(config, std::string(small_toml) + "[distributed]\npp = 2\npp_schedule = \"mine.csv\"\n");
  const auto refused = [&](const std::string& text, const std::vector<std::string>& parts, const std::string& what) {
    store(file, text);
    refuses(folder, {tool("selfcheck"), config}, parts, "selfcheck, " + what);
    refuses(folder, {tool("train"), config, "--ranks", "2", "run.dir=" + workshop.path("never")}, parts, what);
    BOOST_TEST(!std::filesystem::exists(workshop.path("never")));  // nothing was started
  };
  const std::string line_1 = "'" + file + "', line 1: ", line_2 = "'" + file + "', line 2: ", last = "1F0,1B0,1F1,1B1\n";
  refused("0B0,0F0,0F1,0B1\n" + last, {line_1 + "0B0 comes before 0F0"}, "a backward before its forward");
  refused("0F0,0F1,0B1\n" + last, {line_1 + "0B0 is missing"}, "a missing action");
  refused("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1,1B1\n", {line_2, "1B1"}, "a doubled action");
  refused("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n", {line_1 + "the order can not be carried out", "rank 1 with 1F1 for 0F1"}, "ranks that wait for each other");
  refused("0F0,0F1,0B0,0B1\n2F0,2B0,2F1,2B1\n", {"'" + file + "'", "stage 1 is on no line"}, "a stage that nobody has");
  refused("0F0,1F0,0F1,1F1,1B0,0B0,1B1,0B1\n2F0,2B0,2F1,2B1\n", {"mine.toml:", "more stages than layers", file + " has 3 stages"}, "more stages than layers");
  refused("0F0,0B0\n1F0,1B0\n", {"mine.toml:", file + " has 1 microbatches but a step has 2"}, "other microbatches");
  refused("", {"'" + file + "'"}, "an empty file");
  refused(std::string(3000000, 'x'), {line_1}, "no schedule at all");
}

BOOST_AUTO_TEST_CASE(corpora) {
  Workshop workshop;
  const std::string folder = workshop.path(), corpus = workshop.path("corpus");
  const auto trains_not = [&](const std::vector<std::string>& overrides, const std::vector<std::string>& parts, const std::string& what) {
    refuses(folder, workshop.training("run", overrides), parts, what);
  };
  trains_not({"data.dataset_path=" + workshop.path("nothing")}, {"nothing"}, "missing corpus");
  std::filesystem::create_directory(workshop.path("empty"));
  trains_not({"data.dataset_path=" + workshop.path("empty")}, {"empty"}, "an empty folder");
  for (const char* name : {"index.bin", "index.json", "tokens-00000.bin"}) {
    const std::string path = corpus + "/" + name, whole = contents(path);
    const auto damaged = [&](const std::string& bytes, const std::string& what) {
      store(path, bytes);
      trains_not({}, {name}, fmt::format("{}: {}", name, what));
      store(path, whole);
    };
    std::filesystem::remove(path);
    trains_not({}, {std::string(name) == "index.json" ? "corpus" : name}, std::string(name) + ": missing");
    damaged("", "empty");
    damaged(whole.substr(0, whole.size() / 2), "truncated");
    damaged(whole.substr(0, whole.size() - 2), "bytes short");
    damaged(replaced(whole, std::string(name) == "index.json" ? "quire-tokens" : std::string(name) == "index.bin" ? "QUIREIDX" : "QUIRETOK",
                     std::string(name) == "index.json" ? "other-tokens" : "OTHERMGC"), "wrong magic");
  }
  // A token that the vocabulary does not have, in a shard whose sizes are right.
  const std::string tokens = corpus + "/tokens-00000.bin", whole = contents(tokens);
  std::string strange = whole;
  for (size_t i = 64; i < strange.size(); i += 2) strange.replace(i, 2, "\xf0\x7f");
  store(tokens, strange);
  trains_not({}, {"32752"}, "token ids outside the vocabulary");
  store(tokens, whole);

  const std::string raw = workshop.path("raw.bin");
  std::string ids;
  for (int i = 0; i < 400; ++i) ids += std::string{static_cast<char>(i % 7 == 6 ? 9 : i % 5), '\0'};
  store(raw, ids);
  trains_not({"data.dataset_path=" + raw, "data.eos_id=9"}, {"raw.bin", "type"}, "raw tokens of an unknown type");
  trains_not({"data.dataset_path=" + raw, "data.tokens_dtype=u16"}, {"raw.bin", "EOS"}, "raw tokens without EOS id");
  trains_not({"data.dataset_path=" + raw, "data.tokens_dtype=u16", "data.eos_id=300"}, {"300"}, "an EOS id that is not there");
  trains_not({"data.dataset_path=" + raw, "data.tokens_dtype=u16", "data.eos_id=9", "model.vocab_size=5"}, {"5"}, "raw tokens outside the vocabulary");
  store(raw, ids + "x");
  trains_not({"data.dataset_path=" + raw, "data.tokens_dtype=u16", "data.eos_id=9"}, {"raw.bin"}, "half a token");
  store(workshop.path("raw.npy"), "\x93NUMPX\x01\x00garbage");
  trains_not({"data.dataset_path=" + workshop.path("raw.npy"), "data.eos_id=9"}, {"raw.npy"}, "wrong magic in npy");
  trains_not({"data.overflow=refuse", "train.seq_len=8"}, {"8"}, "a document longer than a row");
  run_well({tool("prepare"), workshop.path("text.txt"), "--separator", "%", "--out", workshop.path("other")});
  trains_not({"data.eval_fraction=0", "data.eval_path=" + workshop.path("other")}, {"data.eval_path", "BOS"}, "held-out documents of another tokenizer");
  run_well(workshop.training("run"));  // nothing of all this has spoilt the folder
}

BOOST_AUTO_TEST_CASE(texts) {
  Workshop workshop;
  const std::string folder = workshop.path(), out = workshop.path("made");
  const auto prepares_not = [&](const std::vector<std::string>& args, const std::vector<std::string>& parts, const std::string& what) {
    std::vector<std::string> all{tool("prepare"), "--out", out};
    all.insert(all.end(), args.begin(), args.end());
    refuses(folder, all, parts, what);
    BOOST_TEST(!std::filesystem::exists(out), what << ": left something behind");
  };
  prepares_not({workshop.path("missing.txt")}, {"missing.txt"}, "missing text");
  store(workshop.path("empty.txt"), "");
  prepares_not({workshop.path("empty.txt")}, {"no document"}, "empty text");
  store(workshop.path("latin.txt"), "caf\xe9 au lait\n");
  prepares_not({workshop.path("latin.txt")}, {"latin.txt", "UTF-8"}, "a text that is not UTF-8");
  store(workshop.path("a.jsonl"), "{\"text\": \"good\"}\n{\"text\": \"bro\n");
  prepares_not({workshop.path("a.jsonl")}, {"a.jsonl', line 2"}, "broken JSON");
  store(workshop.path("b.jsonl"), "{\"text\": \"good\"}\n{\"txet\": \"x\"}\n");
  prepares_not({workshop.path("b.jsonl")}, {"b.jsonl', line 2", "'text'"}, "a missing key");
  store(workshop.path("c.jsonl"), "{\"text\": \"\xff\xfe\"}\n");
  prepares_not({workshop.path("c.jsonl")}, {"c.jsonl'", "UTF-8"}, "JSON that is not UTF-8");
  prepares_not({workshop.path("text.txt"), "--tokenizer", "bytes"}, {"bytes", "byte"}, "an unknown tokenizer");
  refuses(folder, {tool("prepare"), workshop.path("text.txt"), "--out", workshop.path("corpus")}, {"corpus"}, "a corpus that is there already");
  const std::string latin = workshop.path("latin.txt");
  refuses(folder, workshop.training("run", {"data.dataset_path=" + latin, "model.vocab_size=258"}), {"latin.txt", "UTF-8"}, "training on text that is not UTF-8");
}

BOOST_AUTO_TEST_CASE(damaged_checkpoints) {
  Workshop workshop;
  run_well(workshop.training("whole"));
  run_well(workshop.training("run"));
  const std::string run = workshop.path("run"), newest = checkpoint_folder(run, 8), older = checkpoint_folder(run, 6);
  const auto good = files_of(run);
  const auto restore = [&] {
    for (const auto& [name, bytes] : good) {
      std::filesystem::create_directories(std::filesystem::path(run + "/" + name).parent_path());
      store(run + "/" + name, bytes);
    }
  };
  const std::vector<std::pair<std::string, std::function<void(const std::string&)>>> damages{
      {"missing weights", [](const std::string& at) { std::filesystem::remove(at + "/rank-00000-parameter.safetensors"); }},
      {"empty index", [](const std::string& at) { store(at + "/index.json", ""); }},
      {"truncated index", [](const std::string& at) { damage(at + "/index.json", [](std::string text) { return text.substr(0, text.size() / 2); }); }},
      {"wrong state", [](const std::string& at) { store(at + "/state.json", "[]"); }},
      {"truncated weights", [](const std::string& at) { damage(at + "/rank-00000-moment1.safetensors", [](std::string b) { return b.substr(0, b.size() - 5); }); }},
      {"one bit of a weight", [](const std::string& at) { damage(at + "/rank-00000-parameter.safetensors", [](std::string b) { return flipped(b, b.size() - 3); }); }},
      {"a lying header", [](const std::string& at) { damage(at + "/rank-00000-parameter.safetensors", [](std::string b) { return flipped(b, 6); }); }},
  };
  for (const auto& [what, spoil] : damages) {
    spoil(newest);
    const ProgramResult result = run_well(workshop.training("run"));
    BOOST_TEST(result.out.find("note: ") != std::string::npos, what << ": nothing was said: " << result.out);
    BOOST_TEST(result.out.find("step-00000008") != std::string::npos, what << ": " << result.out);
    BOOST_TEST(result.out.find("resuming after step 6") != std::string::npos, what << ": " << result.out);
    check_same_training(workshop.config("whole"), workshop.config("run"), what);
    restore();
  }
  // With none left that can be used, training anew would throw the run away: refused, and nothing is touched.
  store(newest + "/index.json", "");
  store(older + "/index.json", "{}");
  refuses(workshop.path(), workshop.training("run"), {"step-00000008", "step-00000006"}, "no checkpoint can be used");
  refuses(workshop.path(), {tool("generate"), run}, {"no complete checkpoint", "step-00000008"}, "generating from damaged checkpoints");
  refuses(workshop.path(), {tool("generate"), newest}, {"index.json"}, "generating from one damaged checkpoint");
  restore();
  refuses(workshop.path(), workshop.training("run", {"model.dim=32"}), {"model.dim"}, "another model in the same folder");
  refuses(workshop.path(), workshop.training("new", {"checkpoint.load_path=" + workshop.path("nothing")}), {"nothing"}, "a missing checkpoint to start from");
  run_well(workshop.training("new"));  // what was refused did not spoil the folder
}

BOOST_AUTO_TEST_CASE(models_for_generate) {
  Workshop workshop;
  run_well(workshop.training("run", {"train.max_steps=1"}));
  const std::string folder = workshop.path();
  const auto generates_not = [&](const std::vector<std::string>& args, const std::vector<std::string>& parts, const std::string& what) {
    std::vector<std::string> all{tool("generate")};
    all.insert(all.end(), args.begin(), args.end());
    refuses(folder, all, parts, what);
  };
  generates_not({workshop.path("nothing")}, {"nothing"}, "a missing folder");
  generates_not({workshop.path("corpus")}, {"corpus", "no model"}, "a corpus as model");
  generates_not({workshop.path("run"), "--prompt-ids", "1,x"}, {"1,x"}, "ids that are no numbers");
  generates_not({workshop.path("run"), "--prompt-ids", "1,999"}, {"999", "257"}, "ids outside the vocabulary");
  generates_not({workshop.path("run"), "--top-p", "7"}, {"top"}, "a share above one");
  generates_not({workshop.path("run"), "--samples", "0"}, {"samples"}, "no sample");
  generates_not({workshop.path("run"), "--temperature", "-1"}, {"temperature", "-1", "from 0 on"}, "a negative temperature");
  generates_not({workshop.path("run"), "--temperature", "nan"}, {"temperature", "nan", "from 0 on"}, "a temperature that is no number");
  // A model in the layout of Hugging Face: two tensors are enough to see that what its header says is checked.
  const std::string model = workshop.path("hf");
  std::filesystem::create_directory(model);
  const std::string config = R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 16, "rms_norm_eps": 1e-5, "max_position_embeddings": 32, "rope_theta": 10000.0,
    "hidden_act": "silu", "tie_word_embeddings": true, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float32"})";
  store(model + "/config.json", config);
  generates_not({model}, {"safetensors"}, "no weights");
  const auto with_header = [&](const std::string& header, const std::string& data) {
    std::string bytes(8, '\0');
    const auto size = static_cast<uint64_t>(header.size());
    std::memcpy(bytes.data(), &size, 8);
    store(model + "/model.safetensors", bytes + header + data);
  };
  store(model + "/model.safetensors", "");
  generates_not({model}, {"model.safetensors"}, "empty weights");
  store(model + "/model.safetensors", std::string(8, '\xff') + "{}");
  generates_not({model}, {"model.safetensors"}, "a header longer than the file");
  with_header("{\"a\":", "");
  generates_not({model}, {"model.safetensors"}, "a header that is no JSON");
  with_header(R"({"model.embed_tokens.weight":{"dtype":"F32","shape":[16,8],"data_offsets":[0,999999]}})", std::string(512, '\0'));
  generates_not({model}, {"model.safetensors", "model.embed_tokens.weight"}, "offsets beyond the file");
  with_header(R"({"model.embed_tokens.weight":{"dtype":"F32","shape":[1600000000,800000000000],"data_offsets":[0,512]}})", std::string(512, '\0'));
  generates_not({model}, {"model.safetensors", "model.embed_tokens.weight"}, "a shape that does not fit its bytes");
  with_header(R"({"model.embed_tokens.weight":{"dtype":"F32","shape":[16,8],"data_offsets":[0,512]}})", std::string(512, '\0'));
  generates_not({model, "--prompt-ids", "1"}, {"lacks tensor"}, "missing tensors");
  store(model + "/config.json", config.substr(0, config.size() / 2));
  generates_not({model}, {"config.json"}, "a truncated config.json");
  store(model + "/config.json", replaced(config, "\"hidden_act\": \"silu\"", "\"hidden_act\": \"gelu\""));
  generates_not({model}, {"config.json", "hidden_act"}, "a key that changes the function");
}

BOOST_AUTO_TEST_CASE(a_run_folder_in_use) {
  Workshop workshop;
  Program first(workshop.training("run", {"train.max_steps=1000000", "checkpoint.interval=0", "eval.interval=0"}));
  BOOST_REQUIRE(first.wait_for("step "));
  check_refused(run_program(workshop.training("run")), {workshop.path("run"), fmt::format("process {}", first.pid())}, "in use");
  first.send(SIGTERM);
  BOOST_TEST(first.wait().status == 0);
  run_well(workshop.training("run", {"train.max_steps=1000000", "data.epochs=1", "checkpoint.interval=0", "eval.interval=0"}));
}

BOOST_AUTO_TEST_CASE(a_run_folder_that_may_not_be_written) {
  Workshop workshop;
  run_well(workshop.training("run", {"train.max_steps=2"}));
  ProgramOptions options;
  if (::geteuid() == 0) options.user = 65534;  // root may write everywhere
  std::filesystem::permissions(workshop.path(), std::filesystem::perms(0755));
  for (const auto& entry : std::filesystem::recursive_directory_iterator(workshop.path("run")))
    std::filesystem::permissions(entry.path(), std::filesystem::perms(entry.is_directory() ? 0555 : 0444));
  std::filesystem::permissions(workshop.path("run"), std::filesystem::perms(0555));
  refuses(workshop.path(), workshop.training("run"), {"run", "denied"}, "a run folder of another user", options);
  refuses(workshop.path(), workshop.training("new"), {"new", "denied"}, "a parent folder of another user", options);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(workshop.path("run")))
    std::filesystem::permissions(entry.path(), std::filesystem::perms(entry.is_directory() ? 0755 : 0644));
  std::filesystem::permissions(workshop.path("run"), std::filesystem::perms(0755));
}

BOOST_AUTO_TEST_CASE(a_full_disk_while_saving) {
  Workshop workshop;
  const std::vector<std::string> steps{"train.max_steps=12", "scheduler.name=constant"};
  run_well(workshop.training("whole", steps));
  run_well(workshop.training("run", {"train.max_steps=4", "scheduler.name=constant"}));
  const std::string run = workshop.path("run");
  const auto before = files_of(run + "/checkpoints");
  // Files may not grow to the size of the weights: writing fails in the middle of the checkpoint, with this limit as with a full disk.
  ProgramOptions small;
  small.largest_file = std::filesystem::file_size(checkpoint_folder(run, 4) + "/rank-00000-parameter.safetensors") - 100;
  check_refused(run_program(workshop.training("run", steps), small), {"step-00000006"}, "a limit on files");
  BOOST_TEST((files_of(run + "/checkpoints") == before));
  const ProgramResult rest = run_well(workshop.training("run", steps));
  BOOST_TEST(rest.out.find("resuming after step 4") != std::string::npos, rest.out);
  check_same_training(workshop.config("whole", steps), workshop.config("run", steps), "after a full disk");

  // A disk that is really full, where the test may mount one.
  const std::string tiny = workshop.path("tiny");
  std::filesystem::create_directory(tiny);
  if (::mount("tmpfs", tiny.c_str(), "tmpfs", 0, "size=1m") != 0) return;
  struct Unmount {
    std::string path;
    ~Unmount() { ::umount2(path.c_str(), MNT_DETACH); }
  } unmount{tiny};
  const std::vector<std::string> first{"run.dir=" + tiny + "/run", "train.max_steps=2", "checkpoint.keep_last_n=0"};
  run_well(workshop.training("", first));
  std::vector<std::string> more = first;
  more[1] = "train.max_steps=2000";
  const ProgramResult full = run_program(workshop.training("", more));
  check_refused(full, {tiny, "No space"}, "a full disk");
  const CheckpointSearch found = latest_checkpoint(disk(), tiny + "/run");
  BOOST_TEST(found.step >= 2);
  BOOST_TEST(found.damaged.empty());
  std::filesystem::remove_all(checkpoint_folder(tiny + "/run", 2));  // makes room
  more[1] = fmt::format("train.max_steps={}", found.step + 1);
  run_well(workshop.training("", more));
}

BOOST_AUTO_TEST_CASE(what_is_there_is_not_overwritten_and_lost_output_is_no_success) {
  Workshop workshop;
  run_well(workshop.training("run", {"train.max_steps=2"}));
  // A folder with something in it is not converted into, be it a model, a run or the user's own.
  store(workshop.path("mine.txt"), "mine");
  const auto before = files_of(workshop.path(""));
  for (const std::string& out : {workshop.path("run"), workshop.path("corpus"), workshop.path("")}) {
    const ProgramResult refused = run_program({tool("convert"), workshop.path("run"), out});
    BOOST_TEST(refused.status == 1);
    BOOST_TEST(refused.err.starts_with("[convert] "), refused.err);
  }
  BOOST_TEST((files_of(workshop.path("")) == before));
  run_well({tool("convert"), workshop.path("run"), workshop.path("converted")});
  // A resume is held to what the checkpoint was trained with, even where config.toml is gone.
  std::filesystem::remove(workshop.path("run/config.toml"));
  const ProgramResult other = run_program(workshop.training("run", {"train.max_steps=4", "optimizer.lr=0.5"}));
  BOOST_TEST(other.status == 1);
  BOOST_TEST(other.err.find("optimizer.lr") != std::string::npos, other.err);
  // An operation that does not exist is no kernel to choose.
  const ProgramResult kernel = run_program(workshop.training("fresh", {R"(run.kernels=["matmull=packed"])"}));
  BOOST_TEST(kernel.status == 1);
  BOOST_TEST(kernel.err.find("nearest: matmul") != std::string::npos, kernel.err);
  // Standard output on a full disk.
  if (std::filesystem::exists("/dev/full"))
    for (const std::string& command : {tool("generate") + " " + workshop.path("run") + " --tokens 3", tool("documents") + " " + workshop.path("small.toml")})
      BOOST_TEST(run_program({"/bin/sh", "-c", command + " > /dev/full"}).status == 1, command);
}

BOOST_AUTO_TEST_CASE(two_prepares_into_one_folder) {
  Workshop workshop;
  write_text(workshop.path("long.txt"), 60000);
  const std::vector<std::string> args{tool("prepare"), workshop.path("long.txt"), "--separator", "%", "--out", workshop.path("both")};
  Program first(args), second(args);
  const ProgramResult a = first.wait(), b = second.wait();
  BOOST_TEST(a.status + b.status == 1, a.err << b.err);  // one writes, the other is refused, whichever came first
  BOOST_TEST((a.err + b.err).starts_with("["), a.err << b.err);
  run_well({tool("documents"), workshop.path("small.toml"), "data.dataset_path=" + workshop.path("both"), "data.eval_fraction=0", "eval.interval=0"});
  BOOST_TEST(!std::filesystem::exists(workshop.path("both.lock")));
}

BOOST_AUTO_TEST_SUITE_END()
