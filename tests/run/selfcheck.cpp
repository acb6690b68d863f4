// The selfcheck: passes where documents are kept apart, and every check fails where the thing it looks for is broken.
#include "run/selfcheck.h"

#include <fmt/format.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "check.h"
#include "data/loader.h"
#include "run/scratch.h"
#include "run/layout_parity.h"
#include "run/layout_breaks.h"
#include "run/trainer.h"
#include "run/training_run.h"

using namespace quire;
using namespace quire::test;

namespace {

const char* const small_model =
    "[model]\ndim = 32\nn_layers = 2\nn_heads = 4\nn_kv_heads = 2\nffn_hidden_dim = 48\n"
    "[train]\nseq_len = 48\nglobal_batch_size = 4\nmicrobatch_size = 2\n"
    "[data]\ndataset_path = \"data.txt\"\nseparator = \"%\"\n";
const char* const three_texts = "A text of some length, then an end.\n%\nShort.\n%\nThe third text is here and longer than the others.\n";

/// A config beside its data, both in a folder of their own.
struct Run {
  Scratch scratch;
  explicit Run(const std::string& text = three_texts) { std::ofstream(scratch.path("data.txt")) << text; }
  Config config(std::vector<std::string> overrides = {}) const {
    overrides.insert(overrides.begin(), {"run.threads=1", "run.dir=" + scratch.path("run")});
    return parse_config(small_model, "small.toml", scratch.path(), overrides);
  }
};

bool is_control(const CheckResult& check) { return check.name.starts_with("control"); }

const CheckResult& find(const SelfcheckReport& report, const std::string& name, const std::string& backend = "block") {
  const auto found = std::find_if(report.checks.begin(), report.checks.end(), [&](const CheckResult& c) { return c.name == name && c.backend == backend; });
  BOOST_REQUIRE_MESSAGE(found != report.checks.end(), "no check '" << name << "'");
  return *found;
}

/// A model in one process whose results are changed on their way out.
class Changed final : public ProbeLayout {
 public:
  using Change = std::function<void(const ProbeInput&, std::vector<double>&)>;
  Changed(ProbeLayout& layout, Change logits, Change gradient) : layout_(layout), logits_(std::move(logits)), gradient_(std::move(gradient)) {}
  std::string name() const override { return "changed"; }
  std::vector<std::string> breaks() const override { return {}; }
  double tolerance() const override { return layout_.tolerance(); }
  std::vector<double> logits(const ProbeInput& input, const ProbeMode& mode) override {
    std::vector<double> result = layout_.logits(input, mode);
    if (logits_) logits_(input, result);
    return result;
  }
  std::vector<double> embedding_gradient(const ProbeInput& input, const ProbeMode& mode) override {
    std::vector<double> result = layout_.embedding_gradient(input, mode);
    if (gradient_) gradient_(input, result);
    return result;
  }

 private:
  ProbeLayout& layout_;
  Change logits_, gradient_;
};

/// Which of the three probes fail for a layout, "leak gradient alone", on both rows.
std::string failures(Changed::Change logits, Changed::Change gradient) {
  const Run run;
  const Config config = run.config();
  Rank rank(RankOptions{.threads = 1});
  Model model(rank, config.model, DType::f32);
  model.initialize(rank, 1);
  SingleLayout single(rank, model, {});
  CorpusInfo info;
  info.vocabulary_size = 257;
  info.eos = 256;
  const auto corpus = std::make_shared<MemoryCorpus>(info);
  corpus->add(std::vector<int32_t>{1, 2, 3, 4, 5, 256});
  corpus->add(std::vector<int32_t>{9, 8, 7, 256});
  Changed changed(single, std::move(logits), std::move(gradient));
  const ProbeRow packed = packed_probe_row(config, corpus, 64);
  std::set<std::string> failed;
  for (const CheckResult& check : check_layout(changed, single, config.model, {equal_probe_row(config.model, packed.input, 64), packed}))
    if (!check.passed) failed.insert(check.name.substr(0, check.name.find(' ')));
  std::string text;
  for (const std::string& name : failed) text += (text.empty() ? "" : " ") + name;
  return text;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(selfcheck_suite)

BOOST_AUTO_TEST_CASE(documents_of_a_real_run_are_kept_apart_and_the_controls_see_the_leak) {
  const Run run;
  const SelfcheckReport report = selfcheck(run.config());
  BOOST_TEST(report.passed(), report.table());
  BOOST_TEST(report.checks.size() == 20u);  // 3 probes and 2 controls, 2 rows, 2 backends
  for (const std::string backend : {"block", "dense"}) {
    BOOST_TEST(find(report, "leak probe, two equal documents", backend).changed_fraction == 0.5);
    BOOST_TEST(find(report, "control, dropped: leak probe, two equal documents", backend).changed_fraction == 1.0);
    BOOST_TEST(find(report, "gradient probe, two equal documents", backend).changed_fraction < 0.5);
    BOOST_TEST(find(report, "packed against alone, packed row", backend).max_difference < 1e-5);
    for (const char* name : {"leak probe, packed row", "gradient probe, packed row", "packed against alone, packed row"}) BOOST_TEST(find(report, name, backend).leaked_rows == 0);
  }
  BOOST_TEST(report.table().find("50.0 % of rows changed: the two documents are kept apart") != std::string::npos);
  BOOST_TEST(report.table().find("initial (seed 42)") != std::string::npos);
  BOOST_TEST(find(report, "leak probe, packed row").words.starts_with("only rows of the changed document changed ("));
}

BOOST_AUTO_TEST_CASE(broken_on_purpose_every_check_fails_and_the_controls_do_not) {
  const Run run;
  const SelfcheckReport report = selfcheck(run.config(), {.broken = "dropped"});
  BOOST_TEST(!report.passed());
  for (const CheckResult& check : report.checks) BOOST_TEST(check.passed == is_control(check), check.name << ": " << check.words);
  BOOST_TEST(find(report, "leak probe, two equal documents").changed_fraction == 1.0);
  BOOST_TEST(find(report, "leak probe, two equal documents").leaked_rows > 0);
  check_error<ConfigError>([&] { selfcheck(run.config(), {.broken = "droped"}); }, {"[selfcheck]", "'droped'", "known: dropped", "did you mean 'dropped'"});
}

BOOST_AUTO_TEST_CASE(the_json_has_the_promised_keys_and_no_others) {
  const Run run;
  const SelfcheckReport report = selfcheck(run.config());
  const nlohmann::json json = nlohmann::json::parse(report.to_json());
  const auto keys = [](const nlohmann::json& object) {
    std::set<std::string> result;
    for (const auto& [key, value] : object.items()) result.insert(key);
    return result;
  };
  BOOST_TEST(keys(json) == (std::set<std::string>{"passed", "checks"}));
  BOOST_TEST(json["passed"].is_boolean());
  BOOST_TEST(json["checks"].size() == report.checks.size());
  for (const nlohmann::json& check : json["checks"]) {
    BOOST_TEST(keys(check) == (std::set<std::string>{"name", "layout", "backend", "changed_fraction", "leaked_rows", "max_difference", "passed"}));
    BOOST_TEST((check["name"].is_string() && check["layout"] == "single" && check["backend"].is_string() && check["changed_fraction"].is_number() &&
                check["leaked_rows"].is_number_integer() && check["max_difference"].is_number() && check["passed"].is_boolean()));
  }
}

BOOST_AUTO_TEST_CASE(the_user_s_own_model_and_settings_are_in_force) {
  const Run run;
  for (const std::vector<std::string>& overrides : std::vector<std::vector<std::string>>{
           {"train.mixed_precision=\"f64\"", "model.qk_norm=true"},
           {"train.mixed_precision=\"bf16\"", "train.activation_checkpointing=\"full\""},
           {"model.sliding_window=[3, 5]", "train.activation_checkpointing=\"attention\"", "train.z_loss_weight=1e-3"},
           {"model.sliding_window=2"},
           {"data.strategy=\"bfd\"", "model.tie_embeddings=false", "train.microbatch_size=1"},
       }) {
    const SelfcheckReport report = selfcheck(run.config(overrides));
    BOOST_TEST(report.passed(), overrides[0] << "\n" << report.table());
    BOOST_TEST(std::count_if(report.checks.begin(), report.checks.end(), is_control) == 8);
  }
  // A window of 1: tokens never meet, nothing can leak, and no control could see it.
  const SelfcheckReport alone = selfcheck(run.config({"model.sliding_window=1"}));
  BOOST_TEST(alone.passed());
  BOOST_TEST(std::none_of(alone.checks.begin(), alone.checks.end(), is_control));
  BOOST_TEST(alone.table().find("window is 1") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(rows_to_probe_hold_at_least_two_documents_whatever_the_data) {
  std::string words;
  for (int i = 0; i < 400; ++i) words += "word ";
  for (const std::string& text : {std::string("x"), words, words + "\n%\n" + words, std::string(three_texts)}) {
    const Run run(text);
    for (const char* row : {"train.seq_len=1", "train.seq_len=7", "train.seq_len=5000"})
      for (const char* epochs : {"data.epochs=0", "data.epochs=1"}) {
        const SelfcheckReport report = selfcheck(run.config({row, epochs}), {.tokens = 100});
        BOOST_TEST(report.passed(), row << " " << epochs << " " << text.substr(0, 20) << "\n" << report.table());
      }
  }
  // What fits is probed as the loader gives it.
  const Run run;
  const Config config = run.config();
  CorpusInfo info;
  info.vocabulary_size = 257;
  info.eos = 256;
  const auto corpus = std::make_shared<MemoryCorpus>(info);
  for (int32_t d = 0; d < 20; ++d) corpus->add(std::vector<int32_t>{d, d, d, d, d, d, d, 256});
  const HostBatch first = Loader(corpus, loader_settings(config)).next_step().microbatches.at(0);
  const ProbeRow row = packed_probe_row(config, corpus, 1024);
  BOOST_TEST(row.input.tokens == first.tokens);
  BOOST_TEST(row.input.targets == first.targets);
  BOOST_TEST((row.input.documents == first.documents));
  const ProbeRow cut = packed_probe_row(config, corpus, 20);
  BOOST_TEST(cut.input.tokens.size() == 20u);
  BOOST_TEST(cut.input.documents.runs().size() >= 2u);
}

BOOST_AUTO_TEST_CASE(each_probe_catches_its_own_fault) {
  BOOST_TEST(failures({}, {}) == "");
  // The last row of the microbatch moves by one unit in the last place when the first token is another.
  BOOST_TEST(failures([](const ProbeInput& input, std::vector<double>& x) { if (input.tokens.size() > 6) x.back() += 1e-14 * input.tokens[0]; }, {}) == "leak");
  // The first row sees its own document's last token, which is ahead of it.
  BOOST_TEST(failures([](const ProbeInput& input, std::vector<double>& x) {
    const DocumentRun first = input.documents.runs().at(0);
    if (first.length > 1) x.front() += 1e-14 * input.tokens[static_cast<size_t>(first.length - 1)];
  }, {}) == "leak");
  // Only backward leaks, and only by the smallest number there is, into the first row.
  BOOST_TEST(failures({}, [](const ProbeInput&, std::vector<double>& x) { x[0] = x[0] == 0 ? 5e-324 : x[0]; }) == "gradient");
  // The second half says something else in a row than alone, whatever the tokens: no leak, and still wrong (positions, say).
  BOOST_TEST(failures([](const ProbeInput& input, std::vector<double>& x) { if (input.documents.runs().size() > 1) x.back() += 0.01; }, {}) == "packed");
  // A model that looks at nothing leaks nothing; that is no proof.
  BOOST_TEST(failures([](const ProbeInput&, std::vector<double>& x) { std::fill(x.begin(), x.end(), 0.0); },
                      [](const ProbeInput&, std::vector<double>& x) { std::fill(x.begin(), x.end(), 0.0); }) == "gradient leak packed");
  // Numbers that are none.
  BOOST_TEST(failures([](const ProbeInput&, std::vector<double>& x) { std::fill(x.begin(), x.end(), std::nan("")); },
                      [](const ProbeInput&, std::vector<double>& x) { std::fill(x.begin(), x.end(), std::nan("")); }) == "gradient leak packed");
}

BOOST_AUTO_TEST_CASE(a_control_that_sees_no_leak_fails) {
  class Deaf final : public ProbeLayout {  // its break breaks nothing
   public:
    explicit Deaf(ProbeLayout& layout) : layout_(layout) {}
    std::string name() const override { return "deaf"; }
    std::vector<std::string> breaks() const override { return {"nothing"}; }
    double tolerance() const override { return layout_.tolerance(); }
    std::vector<double> logits(const ProbeInput& input, const ProbeMode& mode) override { return layout_.logits(input, mode); }
    std::vector<double> embedding_gradient(const ProbeInput& input, const ProbeMode& mode) override { return layout_.embedding_gradient(input, mode); }

   private:
    ProbeLayout& layout_;
  };
  const Run run;
  const Config config = run.config();
  Rank rank(RankOptions{.threads = 1});
  Model model(rank, config.model, DType::f32);
  model.initialize(rank, 1);
  SingleLayout single(rank, model, {});
  Deaf deaf(single);
  const ProbeInput from{{1, 2, 3, 4}, {2, 3, 4, 5}, Documents::from_lengths(std::vector<int64_t>{4})};
  for (const CheckResult& check : check_layout(deaf, single, config.model, {equal_probe_row(config.model, from, 64)})) BOOST_TEST(check.passed == !is_control(check), check.name);
}

std::set<std::string> layouts_of(const SelfcheckReport& report) {
  std::set<std::string> names;
  const nlohmann::json json = nlohmann::json::parse(report.to_json());
  for (const nlohmann::json& check : json["checks"]) names.insert(check["layout"].get<std::string>());
  return names;
}

std::vector<std::string> in_layout(int64_t pp, int64_t dp, const std::string& schedule = "1f1b", int64_t chunks = 1) {
  return {"model.n_layers=4", "model.dim=16", "model.ffn_hidden_dim=16", fmt::format("distributed.pp={}", pp), fmt::format("distributed.dp_replicate={}", dp),
          "distributed.pp_schedule=" + schedule, fmt::format("distributed.pp_chunks={}", chunks)};
}

BOOST_AUTO_TEST_CASE(the_user_s_layout_is_checked_by_probes_and_parity_and_the_controls_see_the_leak) {
  const Run run;
  struct Expected {
    std::vector<std::string> overrides;
    std::string probed;  // the layout of its probes; "" for none
  };
  for (const Expected& expected : {Expected{in_layout(2, 1), "pp 2 1f1b"}, Expected{in_layout(4, 1, "gpipe"), "pp 4 gpipe"}, Expected{in_layout(2, 1, "interleaved_1f1b", 2), "pp 2 interleaved_1f1b x 2"},
                                   Expected{in_layout(2, 2), "pp 2 1f1b"}, Expected{in_layout(1, 2), ""},
                                   Expected{in_layout(3, 1, "zb_h1"), "pp 3 zb_h1"}, Expected{in_layout(2, 1, "zb_v", 2), "pp 2 zb_v x 2"}}) {
    const Config config = run.config(expected.overrides);
    const std::string trained = Mesh(mesh_shape(config)).name();
    const SelfcheckReport report = selfcheck(config, {.tokens = 40});
    BOOST_TEST(report.passed(), report.table());
    std::set<std::string> layouts{"single", trained};
    if (!expected.probed.empty()) layouts.insert(expected.probed);
    BOOST_TEST(layouts_of(report) == layouts, report.table());
    for (const std::string& name : layouts) BOOST_TEST(report.table().find("  " + name + " ") != std::string::npos, name);
    const CheckResult& parity = find(report, "layout parity");
    BOOST_TEST(parity.layout == trained);
    BOOST_TEST((parity.max_difference == 0) == (config.distributed.dp_replicate == 1));
    BOOST_TEST(find(report, "control, unpacked: layout parity").max_difference > 1e-3);
    if (expected.probed.empty()) continue;
    BOOST_TEST(find(report, "boundary records").layout == expected.probed);
    for (const std::string& name : pipeline_breaks(cut_into_stages(config.model, config.distributed.pp_schedule, config.distributed.pp, config.distributed.pp_chunks, {})))
      BOOST_TEST(find(report, "control, " + name + ": leak probe, packed row").passed);
  }
}

BOOST_AUTO_TEST_CASE(every_break_of_a_pipeline_fails_the_checks_and_an_unknown_one_is_named) {
  const Run run;
  std::vector<std::string> three = in_layout(3, 1);
  three.push_back("distributed.pp_layers=[1, 2, 1]");
  for (const std::vector<std::string>& overrides : {three, in_layout(2, 2)}) {
    const Config config = run.config(overrides);
    const std::vector<std::string> breaks = pipeline_breaks(cut_into_stages(config.model, "1f1b", config.distributed.pp, 1, config.distributed.pp_layers));
    BOOST_TEST(breaks.size() == static_cast<size_t>(config.distributed.pp) + 1);  // dropped, at each stage that receives, swapped
    for (const std::string& broken : breaks) {
      const SelfcheckReport report = selfcheck(config, {.broken = broken, .tokens = 40});
      BOOST_TEST(!report.passed(), broken);
      BOOST_TEST(report.table().find("checks FAILED") != std::string::npos);
      for (const CheckResult& check : report.checks) {
        if (is_control(check)) BOOST_TEST(check.passed, broken << ", " << check.name << ": " << check.words);
        else if (check.name.starts_with("leak probe") || check.name.starts_with("gradient probe")) BOOST_TEST(!check.passed, broken << ", " << check.name << ": " << check.words);
        else if (check.name == "boundary records") BOOST_TEST(check.passed == (broken == "dropped"), broken << ", " << check.words);
        else if (check.name == "layout parity") BOOST_TEST(check.passed == (broken == "dropped" || !parity_sees(config, open_data(config).train, broken)), broken << ", " << check.words);
      }
    }
  }
  check_error<ConfigError>([&] { selfcheck(run.config(three), {.broken = "dropped@stage9"}); }, {"'dropped@stage9'", "known: dropped, dropped@stage1, dropped@stage2, swapped", "did you mean 'dropped@stage"});
  check_error<ConfigError>([&] { selfcheck(run.config(three), {.broken = "swaped"}); }, {"did you mean 'swapped'"});
  check_error<ConfigError>([&] { selfcheck(run.config(), {.broken = "swapped"}); }, {"known: dropped"});
}

BOOST_AUTO_TEST_CASE(a_layout_passes_on_data_with_little_to_see) {
  // Rows of one document, of unlike lengths, of one token; a single microbatch; attention that reaches nobody.
  const std::string long_text(3000, 'a');
  for (const auto& [text, settings] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {three_texts, {"data.pack_sequences=false", "train.microbatch_size=1"}},
           {three_texts, {"data.pack_sequences=false"}},
           {three_texts, {"data.strategy=bfd", "train.microbatch_size=1", "train.seq_len=61"}},
           {three_texts, {"train.microbatch_size=4"}},
           {three_texts, {"model.sliding_window=1"}},
           {three_texts, {"train.seq_len=1", "train.microbatch_size=1"}},
           {long_text, {"train.microbatch_size=1"}},
           {long_text, {"data.epochs=1", "train.global_batch_size=80"}}})
    for (const int64_t dp : {1, 2}) {
      const Run run(text);
      std::vector<std::string> overrides = in_layout(2, dp);
      overrides.insert(overrides.end(), settings.begin(), settings.end());
      const SelfcheckReport report = selfcheck(run.config(overrides), {.tokens = 30});
      BOOST_TEST(report.passed(), settings[0] << ", dp " << dp << "\n" << report.table());
      BOOST_TEST(find(report, "layout parity").passed);
      // A control that is left out is said to be.
      for (const std::string name : {"swapped", "unpacked"}) {
        const bool there = std::any_of(report.checks.begin(), report.checks.end(), [&](const CheckResult& c) { return c.name == "control, " + name + ": layout parity"; });
        BOOST_TEST(there == (report.table().find("'" + name + "' would change nothing") == std::string::npos), settings[0] << ": " << name);
      }
    }
}

/// Context ranks besides: layout and exchange as in "zigzag gather".
std::vector<std::string> with_context(std::vector<std::string> overrides, int64_t cp, const std::string& how) {
  const size_t space = how.find(' ');
  overrides.insert(overrides.end(), {fmt::format("distributed.cp={}", cp), "distributed.cp_layout=" + how.substr(0, space), "distributed.cp_exchange=" + how.substr(space + 1)});
  return overrides;
}

BOOST_AUTO_TEST_CASE(context_ranks_are_checked_by_probes_targets_and_parity_and_the_controls_see_the_leak) {
  const Run run;
  struct Expected {
    std::vector<std::string> overrides;
    std::string probed;
  };
  for (const Expected& expected :
       {Expected{with_context(in_layout(1, 1), 2, "balanced ring"), "cp 2 balanced ring"}, Expected{with_context(in_layout(1, 1), 3, "zigzag gather"), "cp 3 zigzag gather"},
        Expected{with_context(in_layout(2, 1), 2, "contiguous heads"), "pp 2 1f1b x cp 2 contiguous heads"},
        Expected{with_context(in_layout(2, 2, "interleaved_1f1b", 2), 2, "zigzag ring"), "pp 2 interleaved_1f1b x 2 x cp 2 zigzag ring"},
        Expected{with_context(in_layout(2, 1, "zb_v", 2), 2, "balanced ring"), "pp 2 zb_v x 2 x cp 2 balanced ring"}}) {
    const Config config = run.config(expected.overrides);
    const SelfcheckReport report = selfcheck(config, {.tokens = 40});
    BOOST_TEST(report.passed(), report.table());
    BOOST_TEST(layouts_of(report) == (std::set<std::string>{"single", expected.probed, Mesh(mesh_shape(config)).name()}), report.table());
    const auto of_layout = [&](const std::string& name) {
      const auto found = std::find_if(report.checks.begin(), report.checks.end(), [&](const CheckResult& c) { return c.name == name && c.layout == expected.probed; });
      BOOST_REQUIRE_MESSAGE(found != report.checks.end(), name << "\n" << report.table());
      return *found;
    };
    BOOST_TEST(of_layout("leak probe, two equal documents").changed_fraction == 0.5);
    BOOST_TEST(of_layout("leak probe, two equal documents").words == "50.0 % of rows changed: the two documents are kept apart");
    BOOST_TEST(of_layout("control, dropped: leak probe, two equal documents").changed_fraction == 1.0);
    BOOST_TEST(of_layout("boundary records").passed);
    BOOST_TEST(of_layout("targets, packed row").passed);
    BOOST_TEST(of_layout("control, labels: targets, one document").leaked_rows > 0);
    const PipelineStages stages = cut_into_stages(config.model, config.distributed.pp_schedule, config.distributed.pp, config.distributed.pp_chunks, {});
    for (const std::string& name : leaking_breaks(stages, context_sharing(config))) BOOST_TEST(of_layout("control, " + name + ": leak probe, packed row").passed);
    BOOST_TEST((find(report, "layout parity").max_difference > 0 && find(report, "layout parity").max_difference < 1e-5));  // keys travelled, and were added in another order
    for (const std::string& name : training_breaks(context_sharing(config))) BOOST_TEST(find(report, "control, " + name + ": layout parity").max_difference > 1e-4);
  }
}

BOOST_AUTO_TEST_CASE(every_break_of_context_ranks_fails_the_checks_with_its_reason) {
  const Run run;
  for (const std::vector<std::string>& overrides : {with_context(in_layout(1, 1), 2, "balanced ring"), with_context(in_layout(2, 1), 2, "zigzag gather"), with_context(in_layout(1, 2), 2, "contiguous heads")}) {
    const Config config = run.config(overrides);
    const ContextSharing sharing = context_sharing(config);
    const std::vector<std::string> leaking = leaking_breaks(cut_into_stages(config.model, "1f1b", config.distributed.pp, 1, {}), sharing);
    for (const std::string& broken : leaking) {
      const SelfcheckReport report = selfcheck(config, {.broken = broken, .tokens = 40});
      BOOST_TEST(!report.passed(), broken);
      for (const CheckResult& check : report.checks) {
        const bool records = broken == "swapped" || broken.starts_with("dropped@");
        if (is_control(check)) BOOST_TEST(check.passed, broken << ", " << check.name << ": " << check.words);
        else if (check.name == "leak probe, packed row" || check.name == "gradient probe, packed row") BOOST_TEST(!check.passed, broken << ", " << check.name << ": " << check.words);
        else if (check.name.starts_with("targets")) BOOST_TEST(check.passed, broken << ": " << check.words);
        else if (check.name == "boundary records") BOOST_TEST(check.passed == !records, broken << ", " << check.words);
        else if (check.name == "layout parity") BOOST_TEST(check.passed == (broken == "dropped" || !parity_sees(config, open_data(config).train, broken)), broken << ", " << check.words);
      }
    }
    for (const std::string& broken : training_breaks(sharing)) {
      const SelfcheckReport report = selfcheck(config, {.broken = broken, .tokens = 40});
      BOOST_TEST(!report.passed(), broken);
      BOOST_TEST(report.table().find("'" + broken + "' is broken on purpose (") != std::string::npos);
      for (const CheckResult& check : report.checks) {
        const bool of_targets = check.name.starts_with("targets");
        if (of_targets && broken != "labels") BOOST_TEST(check.passed, broken << ": " << check.words);
        if (check.name == "targets, one document" && broken == "labels") BOOST_TEST(!check.passed);
        if (check.name == "layout parity") BOOST_TEST(!check.passed, broken << ": " << check.words);
        if (is_control(check)) BOOST_TEST(check.passed, broken << ", " << check.name << ": " << check.words);
      }
    }
  }
  const auto refused = [&](const std::vector<std::string>& overrides, const std::string& broken, std::initializer_list<std::string> parts) {
    check_error<ConfigError>([&] { selfcheck(run.config(overrides), {.broken = broken}); }, parts);
  };
  for (const char* broken : {"ring_step", "dkv_owner", "labels", "denominator"}) refused(in_layout(2, 1), broken, {"[selfcheck]", broken, "distributed.cp to 2 or more", "known: dropped, dropped@stage1, swapped"});
  refused(with_context({}, 2, "contiguous heads"), "ring_step", {"distributed.cp_exchange", "known: dropped, dkv_owner, labels, denominator"});
  refused(with_context({}, 2, "balanced ring"), "ring_steps", {"'ring_steps' is unknown", "did you mean 'ring_step'"});
  refused(with_context({}, 2, "balanced ring"), "swapped", {"distributed.pp to 2 or more"});
}

BOOST_AUTO_TEST_CASE(a_break_is_seen_where_all_context_ranks_have_as_many_targets_and_one_that_can_not_be_seen_is_refused) {
  // One microbatch of long documents: all ranks have about as many targets.
  std::string text;
  for (int i = 0; i < 3000; ++i) text += static_cast<char>('a' + (7 * i + i / 3) % 26);
  const Run run(text), alike(std::string(3000, 'b'));
  const auto config = [&](std::vector<std::string> settings, const Run* of = nullptr) {
    std::vector<std::string> overrides = with_context(in_layout(1, 1), 3, "balanced ring");
    overrides.insert(overrides.end(), {"train.microbatch_size=3", "train.global_batch_size=3", "train.seq_len=101", "train.mixed_precision=f64"});
    overrides.insert(overrides.end(), settings.begin(), settings.end());
    return (of != nullptr ? *of : run).config(overrides);
  };
  for (const char* broken : {"denominator", "labels", "dkv_owner", "ring_step"}) {
    const SelfcheckReport report = selfcheck(config({}), {.broken = broken, .tokens = 30});
    BOOST_TEST(!report.passed(), report.table());
  }
  check_error<ConfigError>([&] { selfcheck(config({}, &alike), {.broken = "dkv_owner", .tokens = 30}); }, {"[selfcheck]", "--break dkv_owner changes nothing", "all alike"});
  BOOST_TEST(find(selfcheck(config({}), {.broken = "denominator", .tokens = 30}), "layout parity").max_difference > 0.5);  // not hidden by a factor of the ranks
  for (const char* broken : {"dropped", "ring_step", "dkv_owner"})
    check_error<ConfigError>([&] { selfcheck(config({"model.sliding_window=1"}), {.broken = broken, .tokens = 30}); },
                             {"[selfcheck]", std::string("--break ") + broken + " changes nothing in this layout and data"});
}

BOOST_AUTO_TEST_CASE(each_line_comes_as_soon_as_it_is_known) {
  const Run run;
  const Config config = run.config(with_context(in_layout(1, 1), 2, "balanced ring"));
  std::multiset<std::string> lines;
  const SelfcheckReport report = selfcheck(config, {.tokens = 30, .print = [&](const std::string& line) { lines.insert(line); }});
  std::multiset<std::string> table;
  std::istringstream text(report.table());
  for (std::string line; std::getline(text, line);) table.insert(line);
  lines.insert(report.outcome());
  BOOST_TEST((lines == table), report.table());
  // What is printed does not wait for what comes next: nothing more is computed after a line that throws.
  struct Enough {};
  std::vector<std::string> first;
  BOOST_CHECK_THROW(selfcheck(config, {.tokens = 30, .print = [&](const std::string& line) {
                                         first.push_back(line);
                                         if (line.starts_with("ok ")) throw Enough();
                                       }}),
                    Enough);
  BOOST_TEST(first.size() <= report.notes.size() + 1);
  BOOST_TEST(first.front().starts_with("model: "), first.front());
  BOOST_TEST(first.back().find("leak probe, two equal documents") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(many_ranks_are_checked_with_one_backend_and_the_report_says_so) {
  const Run run;
  for (const auto& [ranks, backends] : std::vector<std::pair<int64_t, size_t>>{{8, 2}, {9, 1}}) {
    const SelfcheckReport report = selfcheck(run.config(with_context({"model.dim=16", "model.ffn_hidden_dim=16"}, ranks, "balanced ring")), {.tokens = 40});
    BOOST_TEST(report.passed(), report.table());
    std::set<std::string> seen;
    for (const CheckResult& check : report.checks)
      if (check.layout.ends_with("balanced ring")) seen.insert(check.backend);
    BOOST_TEST(seen.size() == backends);
    BOOST_TEST((report.table().find("block backend alone") != std::string::npos) == (backends == 1));
  }
}

BOOST_AUTO_TEST_CASE(context_ranks_pass_on_data_with_little_to_see) {
  const std::string long_text(3000, 'a');
  for (const auto& [text, settings] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {three_texts, {"data.pack_sequences=false", "train.microbatch_size=1"}},
           {three_texts, {"train.microbatch_size=4", "train.mixed_precision=bf16"}},
           {three_texts, {"model.sliding_window=1"}},
           {three_texts, {"model.sliding_window=[0, 2, 5, 1]", "train.mixed_precision=f64"}},
           {three_texts, {"train.seq_len=3", "train.microbatch_size=1"}},
           {long_text, {"train.microbatch_size=1", "train.activation_checkpointing=full"}}})
    for (const char* how : {"balanced ring", "zigzag ring", "contiguous heads"}) {
      const Run run(text);
      std::vector<std::string> overrides = with_context(in_layout(1, 1), 2, how);
      overrides.insert(overrides.end(), settings.begin(), settings.end());
      const SelfcheckReport report = selfcheck(run.config(overrides), {.tokens = 30});
      BOOST_TEST(report.passed(), settings[0] << ", " << how << "\n" << report.table());
      for (const std::string name : {"ring_step", "dkv_owner", "labels", "denominator", "unpacked"}) {
        const bool there = std::any_of(report.checks.begin(), report.checks.end(), [&](const CheckResult& c) { return c.name == "control, " + name + ": layout parity"; });
        const bool possible = name != "ring_step" || std::string(how) != "contiguous heads";
        BOOST_TEST(there == (possible && report.table().find("'" + name + "' would change nothing") == std::string::npos), settings[0] << ", " << how << ": " << name);
      }
    }
}

BOOST_AUTO_TEST_CASE(weights_that_stages_saved_are_checked_in_any_layout) {
  const Run run;
  std::vector<std::string> overrides = in_layout(4, 1);
  overrides.insert(overrides.end(), {"train.max_steps=2", "scheduler.name=constant"});
  const Config config = run.config(overrides);
  run_training_ranks(config);
  const SelfcheckReport report = selfcheck(config, {.tokens = 30}), alone = selfcheck(run.config({"model.n_layers=4", "model.dim=16", "model.ffn_hidden_dim=16", "train.max_steps=2", "scheduler.name=constant"}), {.tokens = 30});
  BOOST_TEST(report.passed(), report.table());
  BOOST_TEST(alone.passed(), alone.table());
  for (const SelfcheckReport* each : {&report, &alone}) BOOST_TEST(each->table().find("step 2 of") != std::string::npos, each->table());
}

BOOST_AUTO_TEST_SUITE_END()
