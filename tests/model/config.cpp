#include "model/config.h"

#include "check.h"

using namespace quire;
using quire::test::check_error;

BOOST_AUTO_TEST_SUITE(model_config)

BOOST_AUTO_TEST_CASE(defaults_are_filled) {
  const ModelConfig model = ModelConfig{}.resolved();
  BOOST_TEST(model.n_kv_heads == 4);
  BOOST_TEST(model.head_dim == 64);
  BOOST_TEST(model.ffn_hidden_dim == 688);
  BOOST_TEST(model.sliding_window == std::vector<int64_t>(4, 0), boost::test_tools::per_element());
  BOOST_TEST((model.resolved() == model));
  ModelConfig windows;
  windows.sliding_window = {128};
  BOOST_TEST(windows.resolved().sliding_window == std::vector<int64_t>(4, 128), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_layers_window_is_found_however_windows_are_given) {
  ModelConfig config;
  config.n_layers = 3;
  const auto windows = [&] { return std::vector<int64_t>{config.window(0), config.window(1), config.window(2)}; };
  BOOST_TEST(windows() == std::vector<int64_t>({0, 0, 0}), boost::test_tools::per_element());
  config.sliding_window = {5};
  BOOST_TEST(windows() == std::vector<int64_t>({5, 5, 5}), boost::test_tools::per_element());
  config.sliding_window = {5, 0, 7};
  BOOST_TEST(windows() == config.sliding_window, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(parameters_are_counted) {
  ModelConfig stories;  // of 260,032 parameters
  stories.dim = 64, stories.n_layers = 5, stories.n_heads = 8, stories.n_kv_heads = 4, stories.ffn_hidden_dim = 172,
  stories.vocab_size = 512;
  BOOST_TEST(stories.parameter_count() == 260032);
  ModelConfig tiny;  // 1,178 numbers with the head that is not tied
  tiny.dim = 8, tiny.n_layers = 2, tiny.n_heads = 2, tiny.n_kv_heads = 1, tiny.ffn_hidden_dim = 12, tiny.vocab_size = 11;
  tiny.tie_embeddings = false;
  BOOST_TEST(tiny.parameter_count() == 1176);  // the file's further two are a legacy table of frequencies
  tiny.qk_norm = true;
  BOOST_TEST(tiny.parameter_count() == 1176 + 2 * 2 * 4);
}

BOOST_AUTO_TEST_CASE(wrong_values_are_named) {
  const auto refuse = [](auto&& change, std::initializer_list<std::string> parts) {
    ModelConfig model;
    change(model);
    check_error<ConfigError>([&] { model.validate(); }, parts);
    check_error<ConfigError>([&] { model.resolved(); }, parts);
  };
  refuse([](ModelConfig& m) { m.dim = 0; }, {"model.dim", "0", "allowed"});
  refuse([](ModelConfig& m) { m.n_layers = -1; }, {"model.n_layers", "-1"});
  refuse([](ModelConfig& m) { m.n_heads = 3; }, {"model.n_heads", "3", "256"});
  refuse([](ModelConfig& m) { m.n_kv_heads = 3; }, {"model.n_kv_heads", "3", "divisor"});
  refuse([](ModelConfig& m) { m.n_kv_heads = 8; }, {"model.n_kv_heads", "8"});
  refuse([](ModelConfig& m) { m.head_dim = 7; }, {"model.head_dim", "7", "even"});
  refuse([](ModelConfig& m) { m.dim = 12; }, {"model.head_dim", "3", "even"});
  refuse([](ModelConfig& m) { m.vocab_size = int64_t{1} << 31; }, {"model.vocab_size"});
  refuse([](ModelConfig& m) { m.ffn_hidden_dim = -4; }, {"model.ffn_hidden_dim"});
  refuse([](ModelConfig& m) { m.max_seq_len = 0; }, {"model.max_seq_len"});
  refuse([](ModelConfig& m) { m.norm_eps = -1; }, {"model.norm_eps"});
  refuse([](ModelConfig& m) { m.rope_theta = 0; }, {"model.rope_theta"});
  refuse([](ModelConfig& m) { m.init_std = std::nan(""); }, {"model.init_std"});
  refuse([](ModelConfig& m) { m.sliding_window = {1, 2}; }, {"model.sliding_window", "2 entries", "4"});
  refuse([](ModelConfig& m) { m.sliding_window = {-1}; }, {"model.sliding_window", "-1"});
  refuse([](ModelConfig& m) { m.attention_backend = "blok"; }, {"model.attention_backend", "blok", "'block'"});
}

BOOST_AUTO_TEST_SUITE_END()
