#include "run/metrics.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "runtime/error.h"

namespace quire {
namespace {

std::string number_text(double value) {
  if (!std::isfinite(value)) return "null";
  const std::string text = fmt::format("{}", value);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

class LineReader {
 public:
  LineReader(std::string_view line, const std::string& where) : where_(where) {
    object_ = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!object_.is_object()) fail<DataError>(where_, "not a JSON object; allowed: one object per line");
  }
  int64_t integer(const char* key, bool required = true) const {
    const nlohmann::json* value = find(key, required);
    if (value == nullptr) return 0;
    if (!value->is_number_integer()) refuse(key, "an integer");
    return value->get<int64_t>();
  }
  double number(const char* key) const { return to_number(*find(key, true), key); }
  std::optional<double> optional_number(const char* key) const {
    const nlohmann::json* value = find(key, false);
    return value == nullptr ? std::nullopt : std::optional(to_number(*value, key));
  }
  bool boolean(const char* key) const {
    const nlohmann::json* value = find(key, true);
    if (!value->is_boolean()) refuse(key, "true or false");
    return value->get<bool>();
  }
  std::string text(const char* key) const {
    const nlohmann::json* value = find(key, false);
    if (value == nullptr) return {};
    if (!value->is_string()) refuse(key, "a text");
    return value->get<std::string>();
  }

 private:
  const nlohmann::json* find(const char* key, bool required) const {
    const auto found = object_.find(key);
    if (found == object_.end() && required) fail<DataError>(where_, "key \"{}\" is missing", key);
    return found == object_.end() ? nullptr : &*found;
  }
  double to_number(const nlohmann::json& value, const char* key) const {
    if (value.is_null()) return std::numeric_limits<double>::quiet_NaN();
    if (!value.is_number()) refuse(key, "a number or null");
    return value.get<double>();
  }
  [[noreturn]] void refuse(const char* key, const char* allowed) const { fail<DataError>(where_, "key \"{}\" is not {}", key, allowed); }

  nlohmann::json object_;
  const std::string& where_;
};

}  // namespace

StepMetrics without_time(StepMetrics metrics) {
  metrics.step_ms = metrics.tokens_per_s = 0;
  metrics.peak_share_useful.reset();
  metrics.peak_share_causal.reset();
  metrics.resident_bytes = metrics.bytes_sent = 0;
  metrics.balance.reset();
  return metrics;
}

std::string few_names(std::string_view list) {
  constexpr int most = 3;
  size_t end = 0, more = 0;
  int names = 0;
  for (size_t at = list.find(", "); at != std::string_view::npos; at = list.find(", ", at + 2)) {
    if (++names == most) end = at;
    if (names >= most) ++more;
  }
  return more == 0 ? std::string(list) : fmt::format("{} and {} more", list.substr(0, end), more);
}

std::string to_json(const StepMetrics& m) {
  std::string out = fmt::format("{{\"step\":{},\"epoch\":{},\"loss\":{},\"valid_tokens\":{},\"tokens\":{},\"grad_norm\":{},\"lr\":{},\"skipped\":{}", m.step,
                                m.epoch, number_text(m.loss), m.valid_tokens, m.tokens, number_text(m.grad_norm), number_text(m.lr), m.skipped);
  if (!m.non_finite.empty())
    out += fmt::format(",\"non_finite\":{}", nlohmann::json(m.non_finite).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
  out += fmt::format(",\"useful_pairs\":{},\"computed_pairs\":{},\"padding\":{}", m.useful_pairs, m.computed_pairs, m.padding);
  const auto optional = [&](const char* key, const std::optional<double>& value) {
    if (value) out += fmt::format(",\"{}\":{}", key, number_text(*value));
  };
  if (m.bytes_sent > 0) out += fmt::format(",\"bytes_sent\":{}", m.bytes_sent);
  optional("balance", m.balance);
  optional("eval_loss", m.eval_loss);
  optional("eval_bits_per_byte", m.eval_bits_per_byte);
  out += fmt::format(",\"step_ms\":{},\"tokens_per_s\":{}", number_text(m.step_ms), number_text(m.tokens_per_s));
  optional("peak_share_useful", m.peak_share_useful);
  optional("peak_share_causal", m.peak_share_causal);
  if (m.resident_bytes > 0) out += fmt::format(",\"resident_bytes\":{}", m.resident_bytes);
  return out + "}";
}

StepMetrics metrics_from_json(std::string_view line, const std::string& where) {
  const LineReader reader(line, where);
  StepMetrics m;
  m.step = reader.integer("step");
  m.epoch = reader.integer("epoch");
  m.loss = reader.number("loss");
  m.valid_tokens = reader.integer("valid_tokens");
  m.tokens = reader.integer("tokens");
  m.grad_norm = reader.number("grad_norm");
  m.lr = reader.number("lr");
  m.skipped = reader.boolean("skipped");
  m.non_finite = reader.text("non_finite");
  m.useful_pairs = reader.integer("useful_pairs");
  m.computed_pairs = reader.integer("computed_pairs");
  m.padding = reader.integer("padding");
  m.bytes_sent = reader.integer("bytes_sent", false);
  m.balance = reader.optional_number("balance");
  m.eval_loss = reader.optional_number("eval_loss");
  m.eval_bits_per_byte = reader.optional_number("eval_bits_per_byte");
  m.step_ms = reader.number("step_ms");
  m.tokens_per_s = reader.number("tokens_per_s");
  m.peak_share_useful = reader.optional_number("peak_share_useful");
  m.peak_share_causal = reader.optional_number("peak_share_causal");
  m.resident_bytes = reader.integer("resident_bytes", false);
  return m;
}

std::vector<StepMetrics> read_metrics(FileSystem& fs, const std::string& path) {
  const std::string text = read_text(fs, path);
  std::vector<StepMetrics> all;
  for (size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1)
    all.push_back(metrics_from_json(std::string_view(text).substr(at, end - at), fmt::format("{}:{}", path, all.size() + 1)));
  return all;
}

}  // namespace quire
