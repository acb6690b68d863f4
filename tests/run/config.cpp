// Configuration: what is read, what is refused and how the refusal reads.
#include "run/config.h"

#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "check.h"
#include "run/config_schema.h"
#include "run/pipeline_stages.h"
#include "run/scratch.h"
#include "runtime/digest.h"

using namespace quire;
using quire::test::check_error;
using quire::test::Scratch;

namespace {

const std::string minimal = "[data]\ndataset_path = \"text.txt\"\n";

Config parse(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return parse_config(minimal + text, "test.toml", "/folder", overrides);
}

void refused(const std::string& text, std::initializer_list<std::string> parts, const std::vector<std::string>& overrides = {}) {
  check_error<ConfigError>([&] { parse(text, overrides); }, parts);
}

/// A file that sets every key, defaults apart where the build allows it.
const std::string everything = R"([run]
dir = "out"
threads = 2
pin_threads = "always"
device = "cpu"
memory_limit = 1000000
instruction_set = "avx2"
kernels = ["matmul=portable", "attention=dense"]
[model]
dim = 64
n_layers = 5
n_heads = 8
n_kv_heads = 2
head_dim = 16
vocab_size = 300
ffn_hidden_dim = 128
max_seq_len = 96
norm_eps = 1e-6
rope_theta = 5e5
init_std = 0.03
qk_norm = true
tie_embeddings = false
sliding_window = [0, 8, 8, 8, 8]
attention_backend = "dense"
[train]
seq_len = 64
global_batch_size = 12
microbatch_size = 3
max_steps = 30
grad_clip_norm = 0.5
seed = 7
data_seed = 8
mixed_precision = "bf16"
activation_checkpointing = "full"
z_loss_weight = 1e-4
max_non_finite_steps = 3
[optimizer]
name = "adamw"
lr = 1e-3
weight_decay = 0.05
betas = [0.8, 0.99]
eps = 1e-7
[scheduler]
name = "wsd"
warmup_steps = 5
decay_steps = 6
stable_steps = 7
min_lr_ratio = 0.25
[data]
dataset_path = "shards"
pack_sequences = false
strategy = "bfd"
overflow = "truncate"
buffer_documents = 99
eval_fraction = 0.125
epochs = 3
shuffle = false
arrange = "cost"
tokenizer = "byte"
separator = "%"
tokens_dtype = "u16"
eos_id = 256
[distributed]
dp_replicate = 3
pp = 2
pp_schedule = "interleaved_1f1b"
pp_chunks = 2
pp_layers = [0, 2, 2, 1]
cp = 5
cp_layout = "zigzag"
cp_exchange = "gather"
watchdog_seconds = 5
[checkpoint]
interval = 10
keep_last_n = 4
load_path = "../old"
[metrics]
log_interval = 2
trace = true
[eval]
interval = 15
steps = 4
)";

const std::string pieces[] = {"\n", "=", "\"", "[", "]", "{", "}", "'''", "#", "\\u0000", "\\", ".", "1e999", "-", "_", "\xff", std::string(1, '\0'), "\r",
                              "nan", "train", "[[train]]\n", "9223372036854775808", "1979-05-27T07:32:00Z", "\xe2\x80\xa8", "0x", "true", ","};

void mutate_bytes(std::string& text, std::mt19937_64& random) {
  const size_t at = random() % text.size();
  switch (random() % 6) {
    case 0: text[at] = static_cast<char>(random() % 256); break;
    case 1: text.erase(at, 1 + random() % 12); break;
    case 2: text.insert(at, pieces[random() % std::size(pieces)]); break;
    case 3: text.insert(at, text.substr(random() % text.size(), random() % 40)); break;
    case 4: text.erase(at + 1); break;
    default: text.insert(at, 1, static_cast<char>(random() % 128)); break;
  }
  text += '\n';
}

/// Stays TOML more often: lines are dropped, doubled and moved, values are exchanged.
void mutate_lines(std::string& text, std::mt19937_64& random) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  const std::string values[] = {"0", "1", "-1", "64", "9223372036854775807", "-9223372036854775808", "0.5", "1e300", "-inf", "nan", "true", "\"\"",
                                "\"dense\"", "\"a\\u0000b\"", "\"a\\nb\"", "[]", "[0.5, 0.5]", "[1, 2, 3]", "[[1]]", "{}", "1979-05-27"};
  const size_t at = random() % lines.size(), other = random() % lines.size();
  const size_t equals = lines[at].find('=');
  switch (random() % 5) {
    case 0: lines.erase(lines.begin() + static_cast<ptrdiff_t>(at)); break;
    case 1: lines.insert(lines.begin() + static_cast<ptrdiff_t>(other), std::string(lines[at])); break;
    case 2: std::swap(lines[at], lines[other]); break;
    default:
      if (equals != std::string::npos) lines[at] = lines[at].substr(0, equals + 1) + values[random() % std::size(values)];
  }
  text.clear();
  for (const std::string& line : lines) (text += line) += '\n';
}

Config everything_config() { return parse_config(everything, "all.toml", "/folder"); }

}  // namespace

BOOST_AUTO_TEST_SUITE(config)

BOOST_AUTO_TEST_CASE(defaults_hold_where_nothing_is_said) {
  const Config config = parse("");
  BOOST_TEST(config.optimizer.name == "adamw");
  BOOST_TEST(config.optimizer.lr == 3e-3);
  BOOST_TEST(config.optimizer.betas == (std::vector<double>{0.9, 0.95}));
  BOOST_TEST(config.optimizer.eps == 1e-8);
  BOOST_TEST(config.optimizer.weight_decay == 0.1);
  BOOST_TEST(config.train.max_non_finite_steps == 5);
  BOOST_TEST(config.train.global_batch_size == 8);
  BOOST_TEST(config.train.microbatch_size == 8);
  BOOST_TEST(config.data.dataset_path == "/folder/text.txt");
  BOOST_TEST(config.run.dir == (std::filesystem::current_path() / "runs/test").string());
  BOOST_TEST((config.model == ModelConfig{}.resolved()));
}

BOOST_AUTO_TEST_CASE(every_key_is_read) {
  const Config config = everything_config(), defaults = resolved(Config{});
  for (const ConfigKey& key : config_schema()) {
    if (!key.stored || !key.later.empty() || key.name == "eval_path" || key.name == "tokenizer" || key.full_name() == "optimizer.name") continue;
    Config found = config, standard = defaults;
    BOOST_TEST(value_text(key.slot(found)) != value_text(key.slot(standard)), key.full_name() << " kept its default");
  }
  BOOST_TEST(config.train.z_loss_weight == 1e-4);
  BOOST_TEST(config.model.sliding_window == (std::vector<int64_t>{0, 8, 8, 8, 8}));
  BOOST_TEST(config.run.kernels.at(1) == "attention=dense");
  BOOST_TEST(config.checkpoint.load_path == "/old");
  BOOST_TEST(config.microbatches() == 4);
  BOOST_TEST((config.dtype() == DType::bf16));
}

BOOST_AUTO_TEST_CASE(schema_names_are_unique_and_slots_are_their_own) {
  std::map<std::string, int> names;
  std::map<const void*, int> places;
  Config config;
  for (const ConfigKey& key : config_schema()) {
    BOOST_TEST(++names[key.full_name()] == 1, key.full_name());
    BOOST_TEST(++places[std::visit([](auto* value) -> const void* { return value; }, key.slot(config))] == 1, key.full_name());
    BOOST_TEST(!key.doc.empty());
    BOOST_TEST(key.doc.find('\n') == std::string::npos);
  }
}

BOOST_AUTO_TEST_CASE(the_stored_text_reads_back_as_the_same_config) {
  for (const Config& config : {everything_config(), parse("")}) {
    const std::string text = to_toml(config);
    const Config again = parse_config(text, "/elsewhere/config.toml", "/elsewhere");
    BOOST_TEST((again == config));
    BOOST_TEST(to_toml(again) == text);
    BOOST_TEST(digest_of(again) == digest_of(config));
    BOOST_TEST((resolved(config) == config));
  }
}

BOOST_AUTO_TEST_CASE(awkward_texts_and_numbers_survive_storing) {
  Config config = everything_config();
  config.data.separator = "a\"b\\c\td\n\x01\x7f \xc3\xa9 'x' # %";
  config.optimizer.lr = 0.1 + 0.2;
  config.model.rope_theta = 1e300;
  config.model.norm_eps = 4.9406564584124654e-324;
  config.train.seed = INT64_MAX;
  BOOST_TEST((parse_config(to_toml(config), "x.toml") == config));
}

BOOST_AUTO_TEST_CASE(unknown_keys_name_line_and_nearest) {
  refused("[train]\nseq_length = 5\n", {"[test.toml:4]", "unknown key \"train.seq_length\"", "did you mean train.seq_len?"});
  refused("[train]\nwarmup_steps = 5\n", {"test.toml:4", "did you mean scheduler.warmup_steps?"});
  refused("[trian]\nseq_len = 5\n", {"test.toml:3", "unknown section \"trian\"", "did you mean [train]?", "run, model, train"});
  refused("", {"[command line]", "did you mean train.seq_len?"}, {"train.seq_le=5"});
  refused("", {"[command line]", "unknown section \"trein\""}, {"trein.seq_len=5"});
  refused("", {"[command line]", "section.key=value"}, {"seq_len"});
  check_error<ConfigError>([&] { parse_config("seq_len = 3\n" + minimal, "t.toml"); }, {"[t.toml:1]", "\"seq_len\"", "did you mean train.seq_len?"});
  check_error<ConfigError>([&] { parse_config("train = 3\n", "t.toml"); }, {"[t.toml:1]", "a section [train]"});
  refused("[zzzzzzzzzz]\n", {"unknown section"});
}

BOOST_AUTO_TEST_CASE(wrong_types_say_what_was_found_and_what_is_allowed) {
  refused("[train]\nseq_len = \"512\"\n", {"[test.toml:4]", "train.seq_len is \"512\" (a text)", "allowed: an integer"});
  refused("[train]\nseq_len = 512.0\n", {"train.seq_len is 512", "an integer"});
  refused("[train]\nseq_len = [1]\n", {"train.seq_len is a list of 1"});
  refused("[optimizer]\nlr = true\n", {"optimizer.lr is true", "a number above 0"});
  refused("[optimizer]\nlr = 1979-05-27\n", {"a date"});
  refused("[optimizer]\nbetas = 0.9\n", {"two numbers"});
  refused("[optimizer]\nbetas = [0.9]\n", {"two numbers"});
  refused("[optimizer]\nbetas = [0.9, \"x\"]\n", {"two numbers"});
  refused("[model]\nqk_norm = 1\n", {"true or false"});
  refused("[model]\nqk_norm = {a = 1}\n", {"is a section"});
  refused("[train.seq_len]\na = 1\n", {"train.seq_len is a section"});
  refused("[[train]]\nseq_len = 1\n", {"train is a list of 1"});
  refused("", {"[command line]", "train.seq_len is \"12 34\"", "an integer"}, {"train.seq_len=12 34"});
  refused("", {"[command line]", "train.seq_len"}, {"train.seq_len=1\nother = 2"});
  refused("", {"[command line]", "train.seq_len"}, {"train.seq_len="});
}

BOOST_AUTO_TEST_CASE(out_of_range_and_unknown_choices_are_refused) {
  refused("[train]\nseq_len = 0\n", {"[test.toml:4]", "train.seq_len is 0", "from 1 to"});
  refused("[train]\nmax_steps = -3\n", {"train.max_steps is -3", "an integer from 1 to 2147483647"});
  refused("[optimizer]\nlr = 0\n", {"optimizer.lr is 0.0", "above 0"});
  refused("[optimizer]\nlr = nan\n", {"optimizer.lr is nan"});
  refused("[optimizer]\nlr = inf\n", {"optimizer.lr is inf"});
  refused("[optimizer]\nbetas = [0.9, 1]\n", {"optimizer.betas is [0.9, 1.0]", "below 1"});
  refused("[scheduler]\nmin_lr_ratio = 1.5\n", {"from 0 to 1"});
  refused("[train]\nmixed_precision = \"fp32\"\n", {"train.mixed_precision is \"fp32\"", "\"f64\", \"f32\" or \"bf16\""});
  refused("[train]\nmixed_precision = \"bf-16\"\n", {"did you mean bf16?"});
  refused("[model]\nsliding_window = [4, -1, 4, 4]\n", {"model.sliding_window is [4, -1, 4, 4]", "from 0 to 2147483647, or a list of such"});
  refused("[model]\nsliding_window = 2147483648\n", {"model.sliding_window is", "2147483648", "from 0 to 2147483647"});
  refused("[model]\nattention_backend = \"flash\"\n", {"model.attention_backend is \"flash\"", "\"block\", \"dense\" or \"cudnn\""});
  refused("[model]\nn_heads = 3\n", {"[test.toml:4]", "model.n_heads is 3"});  // refused by the model, which knows no file
  refused("[run]\nkernels = [\"matmul\"]\n", {"[test.toml:4]", "op=kernel"});
}

BOOST_AUTO_TEST_CASE(what_is_not_built_is_refused_and_named) {
  for (const auto& [key, what] : std::map<std::string, std::string>{{"tp", "tensor parallelism"}, {"dp_shard", "sharded state"}})
    refused("[distributed]\n" + key + " = 2\n", {"[test.toml:4]", "distributed." + key + " is 2", what + " is not there yet", "allowed: 1"});
  BOOST_TEST(parse("[distributed]\ndp_shard = -1\npp = 1\n").distributed.dp_shard == 1);
  for (const ConfigKey& key : config_schema())  // every key that does nothing yet takes its default only: another integer is refused
    if (!key.later.empty() && key.type_name() == "integer") {
      Config config;
      *std::get<int64_t*>(key.slot(config)) = 3;
      check_error<ConfigError>([&] { resolved(config); }, {key.full_name(), key.later});
    }
}

BOOST_AUTO_TEST_CASE(what_a_cuda_device_does_not_do_is_refused) {
  const std::string cuda = "[run]\ndevice = \"cuda\"\n";
  parse(cuda + "[train]\nmixed_precision = \"bf16\"\n");
  for (const char* layout : {"dp_replicate = 2", "pp = 2", "cp = 2"})
    parse(cuda + "[distributed]\n" + layout + "\n");  // a device for each rank is looked for where it starts
  refused(cuda + "[train]\nmixed_precision = \"f64\"\n", {"[test.toml:4]", "mixed_precision is \"f64\"", "\"f32\" or \"bf16\""});
  refused(cuda + "[model]\nattention_backend = \"dense\"\n", {"[test.toml:4]", "attention_backend is \"dense\"", "\"block\""});
  for (const char* device : {"auto", "cpu"})  // which find the CPU for these
    parse("[run]\ndevice = \"" + std::string(device) + "\"\n[distributed]\ndp_replicate = 2\n[train]\nmixed_precision = \"f64\"\n[model]\nattention_backend = \"dense\"\n");
}

BOOST_AUTO_TEST_CASE(what_cudnns_attention_does_not_do_is_refused) {
  const std::string cudnn = "[model]\nattention_backend = \"cudnn\"\n";
  for (const char* device : {"cuda", "auto"}) parse(cudnn + "[run]\ndevice = \"" + device + "\"\n[train]\nmixed_precision = \"bf16\"\n");
  refused(cudnn, {"[test.toml:4]", "attention_backend is \"cudnn\"", "mixed_precision is \"f32\"", "\"block\", or train.mixed_precision = \"bf16\""});
  refused(cudnn + "[train]\nmixed_precision = \"bf16\"\n[run]\ndevice = \"cpu\"\n", {"run.device is \"cpu\"", "run.device = \"cuda\""});
  refused(cudnn + "[train]\nmixed_precision = \"bf16\"\n[distributed]\ncp = 2\n", {"distributed.cp is 2", "merged in f32", "distributed.cp = 1"});
}

BOOST_AUTO_TEST_CASE(a_layout_is_read_as_a_mesh_and_stages) {
  const Config one = parse("[distributed]\ndp_shard = -1\n");
  BOOST_TEST((mesh_shape(one) == MeshShape{}));
  BOOST_TEST(pipeline_stages(one).stages() == 1);
  const Config config = everything_config();
  BOOST_TEST((mesh_shape(config) == MeshShape{.pp = 2, .dp = 3, .cp = 5}));
  BOOST_TEST(mesh_shape(config).ranks() == 30);
  BOOST_TEST(pipeline_stages(config).stages() == 4);
  for (const std::string schedule : {"gpipe", "1f1b", "interleaved_1f1b", "zb_h1"})
    BOOST_TEST(parse("", {"distributed.pp=4", "distributed.pp_schedule=" + schedule}).distributed.pp_schedule == schedule);
  // zb_v has two stages on each rank: asked for or not.
  for (const std::vector<std::string>& chunks : std::vector<std::vector<std::string>>{{}, {"distributed.pp_chunks=2"}}) {
    std::vector<std::string> overrides{"distributed.pp=2", "distributed.pp_schedule=zb_v"};
    overrides.insert(overrides.end(), chunks.begin(), chunks.end());
    const Config v = parse("", overrides);
    BOOST_TEST(v.distributed.pp_chunks == 2);
    BOOST_TEST(pipeline_stages(v).rank_of_stage == (std::vector<int64_t>{0, 1, 1, 0}));
    BOOST_TEST(pipeline_stages(v).describe() == "embedding to layer 0 (rank 0) | layer 1 (rank 1) | layer 2 (rank 1) | layer 3 to head (rank 0)");
    BOOST_TEST((resolved(v) == v));
  }
  BOOST_TEST(parse("", {"distributed.pp=2", "distributed.pp_layers=3,1"}).distributed.pp_layers == (std::vector<int64_t>{3, 1}));
  BOOST_TEST(parse("", {"distributed.pp=2", "distributed.pp_layers=[0,4]"}).distributed.pp_layers == (std::vector<int64_t>{0, 4}));
  BOOST_TEST(parse("", {"distributed.pp_layers=4"}).distributed.pp_layers == (std::vector<int64_t>{4}));
}

BOOST_AUTO_TEST_CASE(context_ranks_are_read_and_what_can_not_be_is_refused) {
  const Config config = parse("", {"distributed.cp=3", "distributed.pp=2", "distributed.cp_layout=zigzag", "distributed.cp_exchange=gather"});
  BOOST_TEST((mesh_shape(config) == MeshShape{.pp = 2, .cp = 3}));
  BOOST_TEST(config.distributed.cp_layout == "zigzag");
  for (const std::string layout : {"auto", "contiguous", "zigzag", "balanced"}) BOOST_TEST(parse("", {"distributed.cp=2", "distributed.cp_layout=" + layout}).distributed.cp_layout == layout);
  // heads has one layout: it is taken where none was asked for.
  BOOST_TEST(parse("", {"distributed.cp=2", "distributed.cp_exchange=heads"}).distributed.cp_layout == "contiguous");
  BOOST_TEST(parse("", {"distributed.cp=2", "distributed.cp_layout=auto", "distributed.cp_exchange=heads"}).distributed.cp_layout == "contiguous");
  for (const std::string layout : {"zigzag", "balanced"})
    refused("", {"[command line]", "distributed.cp_layout is \"" + layout + "\"", "cp_exchange is \"heads\"", "allowed: \"contiguous\""},
            {"distributed.cp=2", "distributed.cp_exchange=heads", "distributed.cp_layout=" + layout});
  refused("[model]\nn_heads = 4\n[distributed]\ncp = 3\ncp_exchange = \"heads\"\n", {"[test.toml:7]", "distributed.cp_exchange is \"heads\" with distributed.cp = 3", "4"});
  refused("[model]\nn_heads = 6\nn_kv_heads = 3\nhead_dim = 4\n[distributed]\ncp = 2\ncp_exchange = \"heads\"\n", {"cp_exchange is \"heads\"", "3"});
  BOOST_TEST(parse("", {"model.n_heads=8", "model.n_kv_heads=2", "distributed.cp=4", "distributed.cp_exchange=heads"}).distributed.cp == 4);
  refused("[train]\nseq_len = 8\n[distributed]\ncp = 9\n", {"[test.toml:6]", "distributed.cp is 9", "more ranks than tokens in a row", "at most train.seq_len = 8"});
  refused("", {"distributed.cp_layout is \"zig-zag\"", "did you mean zigzag?"}, {"distributed.cp_layout=zig-zag"});
  refused("", {"distributed.cp is 0", "from 1 to"}, {"distributed.cp=0"});
}

BOOST_AUTO_TEST_CASE(pipelines_that_fit_no_layers_are_refused_with_the_numbers) {
  refused("[model]\nn_layers = 3\n[distributed]\npp = 4\n", {"[test.toml:6]", "more stages than layers", "distributed.pp is 4", "model.n_layers is 3", "3 stages or fewer"});
  refused("", {"[command line]", "more stages than layers", "distributed.pp = 2 x distributed.pp_chunks = 3 makes 6 stages", "model.n_layers is 4"},
          {"distributed.pp=2", "distributed.pp_chunks=3", "distributed.pp_schedule=interleaved_1f1b"});
  refused("", {"more stages than layers"}, {"distributed.pp=2147483647", "distributed.pp_chunks=2147483647", "distributed.pp_schedule=interleaved_1f1b"});
  for (const std::string schedule : {"gpipe", "1f1b"})
    refused("", {"[command line]", "distributed.pp_chunks is 2", "distributed.pp_schedule is \"" + schedule + "\"", "interleaved_1f1b"},
            {"distributed.pp_chunks=2", "distributed.pp_schedule=" + schedule});
  for (const char* chunks : {"1", "3"})
    refused(fmt::format("[distributed]\npp = 1\npp_chunks = {}\npp_schedule = \"zb_v\"\n", chunks), {"[test.toml:5]", fmt::format("distributed.pp_chunks is {}", chunks), "\"zb_v\", which has 2 stages on each rank", "leave it out"});
  refused("", {"more stages than layers", "distributed.pp = 3 x distributed.pp_chunks = 2 makes 6 stages"}, {"distributed.pp=3", "distributed.pp_schedule=zb_v"});
  refused("", {"distributed.pp_schedule is \"zb-v\"", "did you mean zb_v?", "\"zb_h1\", \"zb_v\" or a path that ends in .csv"}, {"distributed.pp_schedule=zb-v"});
  refused("[distributed]\npp = 2\npp_layers = [4]\n", {"[test.toml:5]", "distributed.pp_layers is [4], 1 stages", "makes 2", "one number per stage"});
  refused("[distributed]\npp_layers = [2, 2]\n", {"distributed.pp_layers is [2, 2], 2 stages", "makes 1"});
  refused("[distributed]\npp = 2\npp_layers = [2, 3]\n", {"distributed.pp_layers is [2, 3], 5 layers in all", "model.n_layers is 4"});
  refused("[distributed]\npp = 3\npp_layers = [2, 0, 2]\n", {"distributed.pp_layers is [2, 0, 2]", "stage 1 holds no layer", "the embedding"});
  refused("[distributed]\npp_layers = [5, -1]\n", {"[test.toml:4]", "distributed.pp_layers is [5, -1]", "from 0"});
  refused("[distributed]\nwatchdog_seconds = 0\n", {"distributed.watchdog_seconds is 0", "above 0"});
}

BOOST_AUTO_TEST_CASE(both_forms_of_the_batch_mean_the_same) {
  const auto batch = [](const std::string& text) {
    const Config config = parse("[train]\n" + text);
    BOOST_TEST(config.train.batch_size == 0);
    BOOST_TEST(config.train.grad_accum_steps == 0);
    return std::pair(config.train.global_batch_size, config.train.microbatch_size);
  };
  using Pair = std::pair<int64_t, int64_t>;
  BOOST_TEST((batch("batch_size = 4\ngrad_accum_steps = 3\n") == Pair(12, 4)));
  BOOST_TEST((batch("batch_size = 4\n") == Pair(4, 4)));
  BOOST_TEST((batch("microbatch_size = 4\n") == Pair(8, 4)));
  BOOST_TEST((batch("global_batch_size = 6\n") == Pair(6, 6)));
  BOOST_TEST((batch("global_batch_size = 6\ngrad_accum_steps = 3\n") == Pair(6, 2)));
  BOOST_TEST((batch("global_batch_size = 6\nbatch_size = 3\n") == Pair(6, 3)));
  BOOST_TEST((batch("global_batch_size = 12\nbatch_size = 4\nmicrobatch_size = 4\ngrad_accum_steps = 3\n") == Pair(12, 4)));
}

BOOST_AUTO_TEST_CASE(contradictions_are_refused) {
  refused("[train]\nglobal_batch_size = 10\nbatch_size = 4\ngrad_accum_steps = 2\n", {"[test.toml:4]", "10", "make 8"});
  refused("[train]\nglobal_batch_size = 10\nbatch_size = 4\n", {"[test.toml:5]", "train.batch_size is 4", "divisor of train.global_batch_size = 10"});
  refused("[train]\nglobal_batch_size = 10\nmicrobatch_size = 4\n", {"[test.toml:5]", "train.microbatch_size is 4"});
  refused("[train]\nglobal_batch_size = 10\ngrad_accum_steps = 4\n", {"[test.toml:5]", "divisor"});
  refused("[train]\nbatch_size = 2\nmicrobatch_size = 4\n", {"train.batch_size is 2", "train.microbatch_size is 4"});
  refused("[train]\ngrad_accum_steps = 4\n", {"train.grad_accum_steps is 4"});
  refused("[train]\nbatch_size = 16777216\ngrad_accum_steps = 16777216\nglobal_batch_size = 1\n", {"global_batch_size is 1"});
  refused("", {"data.eval_fraction", "data.eval_path", "one of the two"}, {"data.eval_fraction=0.1", "data.eval_path=x"});
  refused("[eval]\ninterval = 10\n", {"[test.toml:4]", "no document is held out"});
  refused("[scheduler]\nstable_steps = 10\n", {"scheduler.stable_steps", "wsd"});
  refused("[scheduler]\nname = \"constant\"\ndecay_steps = 10\n", {"[test.toml:5]", "constant"});
  refused("", {"data.overflow is \"refuse\"", "concat"}, {"data.overflow=refuse"});
  refused("[model]\nmax_seq_len = 100\n", {"[test.toml:4]", "model.max_seq_len is 100", "train.seq_len = 1024"});
  BOOST_TEST(parse("", {"data.overflow=refuse", "data.pack_sequences=false"}).data.overflow == "refuse");
  BOOST_TEST(parse("[train]\nseq_len = 5000\n").model.max_seq_len == 5000);
  check_error<ConfigError>([&] { parse_config("", "none.toml"); }, {"[none.toml]", "data.dataset_path is not set"});
}

BOOST_AUTO_TEST_CASE(overrides_win_and_need_no_quotes) {
  const Config config = parse("[train]\nseq_len = 100\n", {"train.seq_len=64", "data.separator=%%", "optimizer.betas=0.8,0.9", "optimizer.lr=1",
                                                           "run.kernels=[\"a=b\"]", "model.sliding_window=16", "model.qk_norm=true",
                                                           "data.eval_path=\"quoted path\"", "optimizer.betas=[0.7,0.9]"});
  BOOST_TEST(config.train.seq_len == 64);
  BOOST_TEST(config.data.separator == "%%");
  BOOST_TEST(config.optimizer.betas.at(0) == 0.7);
  BOOST_TEST(config.optimizer.lr == 1.0);
  BOOST_TEST(config.run.kernels.at(0) == "a=b");
  BOOST_TEST(config.model.qk_norm);
  BOOST_TEST(config.model.sliding_window == (std::vector<int64_t>(4, 16)));
  BOOST_TEST(config.data.eval_path == (std::filesystem::current_path() / "quoted path").string());  // not relative to /folder
}

BOOST_AUTO_TEST_CASE(paths_are_relative_to_their_file) {
  const Scratch scratch;
  std::filesystem::create_directories(scratch.path("a/b"));
  std::ofstream(scratch.path("a/b/run.toml")) << "[data]\ndataset_path = \"../text\"\neval_path = \"/absolute\"\n[checkpoint]\nload_path = \"\"\n";
  const Config config = load_config(scratch.path("a/b/run.toml"), {"run.dir=here"});
  BOOST_TEST(config.data.dataset_path == scratch.path("a/text"));
  BOOST_TEST(config.data.eval_path == "/absolute");
  BOOST_TEST(config.checkpoint.load_path == "");
  BOOST_TEST(config.run.dir == (std::filesystem::current_path() / "here").string());
  check_error<FileError>([&] { load_config(scratch.path("missing.toml")); }, {"missing.toml"});
}

BOOST_AUTO_TEST_CASE(broken_toml_names_its_line) {
  refused("[train]\nseq_len = \n", {"[test.toml:4]", "not valid TOML"});
  refused("[train]\nseq_len = 1\nseq_len = 2\n", {"[test.toml:5]"});
  refused("[train]\nseq_len = 99999999999999999999\n", {"[test.toml:4]"});
  refused("[data]\nshuffle = false\n", {"[test.toml:3]", "not valid TOML"});  // [data] a second time
  refused("# \xff\xfe\n", {"test.toml", "not valid TOML"});
}

BOOST_AUTO_TEST_CASE(resuming_allows_what_changes_no_weight_and_names_what_does) {
  const Config stored = everything_config();
  for (const ConfigKey& key : config_schema()) {
    Config now = stored;
    const ConfigSlot slot = key.slot(now);
    if (auto* integer = std::get_if<int64_t*>(&slot)) ++**integer;
    if (auto* number = std::get_if<double*>(&slot)) **number *= 0.5;
    if (auto* boolean = std::get_if<bool*>(&slot)) **boolean = !**boolean;
    if (auto* text = std::get_if<std::string*>(&slot)) **text += "x";
    if (auto* list = std::get_if<std::vector<int64_t>*>(&slot)) ++(*list)->front();
    if (auto* list = std::get_if<std::vector<double>*>(&slot)) (*list)->back() *= 0.5;
    if (auto* list = std::get_if<std::vector<std::string>*>(&slot)) (*list)->pop_back();
    if (!key.stored) continue;
    if (key.may_differ) {
      BOOST_CHECK_NO_THROW(check_resumable(stored, now));
      BOOST_TEST(digest_of(now) == digest_of(stored), key.full_name());
    } else {
      check_error<ConfigError>([&] { check_resumable(stored, now); }, {"[resume]", key.full_name() + " is ", "run.dir"});
      BOOST_TEST(digest_of(now) != digest_of(stored), key.full_name());
    }
  }
  for (const std::string name : {"train.max_steps", "metrics.log_interval", "run.threads", "checkpoint.interval", "eval.interval", "distributed.pp", "distributed.dp_replicate",
                                 "distributed.pp_schedule", "distributed.pp_chunks", "distributed.pp_layers", "distributed.cp", "distributed.cp_layout", "distributed.cp_exchange",
                                 "distributed.watchdog_seconds"})
    BOOST_TEST(find_key(name.substr(0, name.find('.')), name.substr(name.find('.') + 1))->may_differ, name);
  for (const std::string name : {"train.seq_len", "optimizer.lr", "model.dim", "data.strategy", "train.data_seed", "train.mixed_precision"})
    BOOST_TEST(!find_key(name.substr(0, name.find('.')), name.substr(name.find('.') + 1))->may_differ, name);
}

BOOST_AUTO_TEST_CASE(the_page_of_keys_is_the_schema) {
  const std::string page = std::string(QUIRE_SOURCE_ROOT) + "/docs/config.md", printed = config_documentation();
  if (std::getenv("QUIRE_WRITE_DOCS") != nullptr) std::ofstream(page) << printed;  // how the page is made
  BOOST_TEST((read_text(disk(), page) == printed), "docs/config.md is not what the schema prints; QUIRE_WRITE_DOCS=1 with this test writes it");
}

BOOST_AUTO_TEST_CASE(committed_configs_are_valid) {
  const std::string folder = std::string(QUIRE_SOURCE_ROOT) + "/tools/configs";
  const Config tiny = load_config(folder + "/tiny.toml");
  BOOST_TEST(tiny.model.n_layers == 8);
  BOOST_TEST(tiny.train.max_steps == 30);
  BOOST_TEST(tiny.scheduler.name == "constant");
  BOOST_TEST(tiny.data.dataset_path == folder + "/tiny.txt");
  const Config fortunes = load_config(folder + "/fortunes.toml");
  BOOST_TEST(fortunes.data.strategy == "bfd");
}

BOOST_AUTO_TEST_CASE(mutated_files_are_read_or_refused_in_one_line) {
  std::mt19937_64 random(11);
  int64_t read = 0, refused_files = 0;
  for (int round = 0; round < 6000; ++round) {
    std::string text = everything;
    for (uint64_t mutations = 1 + random() % 2; mutations-- > 0;) round % 2 == 0 ? mutate_bytes(text, random) : mutate_lines(text, random);
    try {
      parse_config(text, "fuzz.toml", "/folder");
      ++read;
    } catch (const ConfigError& error) {
      const std::string message = error.what();
      BOOST_REQUIRE_MESSAGE(message.find_first_of("\n\r") == std::string::npos && message.find('\0') == std::string::npos, message);
      BOOST_REQUIRE_MESSAGE(message.starts_with("[fuzz.toml"), message);
      BOOST_REQUIRE_MESSAGE(message.size() < 1000, message);
      ++refused_files;
    }
  }
  BOOST_TEST(read > 500);  // the mutations reach both sides
  BOOST_TEST(refused_files > 1000);
  for (int round = 0; round < 1000; ++round) {
    std::string argument = "train.seq_len=64";
    for (int i = 0; i < 3; ++i) argument.insert(random() % (argument.size() + 1), pieces[random() % std::size(pieces)]);
    try {
      parse_config(everything, "fuzz.toml", "/folder", {argument});
    } catch (const ConfigError& error) {
      BOOST_REQUIRE_MESSAGE(std::string(error.what()).find_first_of("\n\r") == std::string::npos, error.what());
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
