// `bench kernels`: its options, its parts in order, and what it prints.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bench/common.h"
#include "bench/kernels.h"
#include "runtime/error.h"

namespace quire::bench {

void check(const KernelsOptions& options) {
  check_names("--parts", options.parts, {"products", "attention", "memory"});
  check_names("--dtype", options.dtypes, {"f32", "bf16"});
  if (options.pairs < 1 || options.draws < 1 || options.tries < 1)
    fail<ConfigError>("bench", "--pairs is {}, --draws {} and --tries {}; all are at least 1", options.pairs, options.draws, options.tries);
  if (!(options.patience_seconds > 0)) fail<ConfigError>("bench", "--patience is {}; it is above 0", options.patience_seconds);
}

KernelsResult bench_kernels(const KernelsOptions& options) {
  check(options);
  KernelsResult result;
  result.machine = machine_name();
  result.date = today();
  const auto has = [&](const char* part) { return std::ranges::find(options.parts, part) != options.parts.end(); };
  if (has("products")) bench_products(options, result);
  if (has("attention")) bench_attention(options, result);
  if (has("memory")) bench_memory(options, result);
  return result;
}

namespace {

std::vector<std::string> sides_of(const KernelsResult& result) {
  std::vector<std::string> names;
  for (const KernelTime& time : result.products.front().times) names.push_back(time.name);
  return names;
}

/// Of one side over all shapes of a form: shares of the probe, and its seconds over the first side's.
struct FormMedian {
  Spread share;
  double ratio;
};
FormMedian over_shapes(const KernelsResult& result, const std::string& form, size_t side) {
  std::vector<double> shares, ratios;
  for (const ProductLine& line : result.products)
    if (line.form == form) {
      shares.push_back(line.times[side].share);
      ratios.push_back(median_of(line.times[side].ratios));
    }
  return {spread_of(shares), median_of(ratios)};
}

std::string products_text(const KernelsResult& result) {
  if (result.products.empty()) return "";
  const std::vector<std::string> sides = sides_of(result);
  std::string text = "Products, share of the multiply-add probe, median over shapes (quartiles); in brackets the side's time over that of " + sides[0] + ". Gate 87 %, stretch 95 %.\n\n| form |";
  for (const std::string& side : sides) text += fmt::format(" {} |", side);
  text += "\n|---|";
  for (size_t side = 0; side < sides.size(); ++side) text += "---|";
  text += "\n";
  for (const char* form : {"nt", "nn", "tn"}) {
    text += fmt::format("| {} |", form);
    for (size_t side = 0; side < sides.size(); ++side) {
      const FormMedian found = over_shapes(result, form, side);
      text += fmt::format(" {:.1f} % ({:.0f} to {:.0f}){} |", 100 * found.share.median, 100 * found.share.low, 100 * found.share.high, side == 0 ? "" : fmt::format(" [{:.2f}]", found.ratio));
    }
    text += "\n";
  }
  text += "\n| tokens x outputs x inputs | form | probe GFLOP/s |";
  for (const std::string& side : sides) text += fmt::format(" {} |", side);
  text += "\n|---|---|---:|";
  for (size_t side = 0; side < sides.size(); ++side) text += "---:|";
  text += "\n";
  for (const ProductLine& line : result.products) {
    text += fmt::format("| {} x {} x {} | {} | {:.1f} |", line.tokens, line.outputs, line.inputs, line.form, line.probe / 1e9);
    for (const KernelTime& time : line.times) text += fmt::format(" {:.1f} % |", 100 * time.share);
    text += "\n";
  }
  return text + "\n";
}

/// The least median ratio of a peer in this line; 0 without peers.
double best_ratio(const AttentionLine& line, std::string* name = nullptr) {
  double best = 0;
  for (size_t i = 1; i < line.times.size(); ++i)
    if (const double ratio = median_of(line.times[i].ratios); best == 0 || ratio < best) {
      best = ratio;
      if (name) *name = line.times[i].name;
    }
  return best;
}

std::string attention_text(const KernelsResult& result) {
  if (result.attention.empty()) return "";
  std::string text = "Attention over 2,048 tokens, 8 heads of 64 (4 of keys), f32: share of the probe per useful pair. Gate for both: one document 75 %, mean 128 50 %; stretch 85 % and 65 %.\n\n"
                     "| documents | row | number | forward | backward | both | ms | best peer | ratio |\n|---|---:|---:|---:|---:|---:|---:|---|---:|\n";
  for (const AttentionLine& line : result.attention) {
    std::string peer;
    const double ratio = best_ratio(line, &peer);
    text += fmt::format("| {} | {} | {} | {:.1f} % | {:.1f} % | {:.1f} % | {:.2f} | {} | {} |\n", line.documents, line.row, line.document_count, 100 * line.forward, 100 * line.backward,
                        100 * line.both, 1e3 * median_of(line.times[0].seconds), peer, ratio > 0 ? fmt::format("{:.2f}", ratio) : "");
  }
  text += "\n| documents | forward | backward | both | ratio to the best peer |\n|---|---:|---:|---:|---:|\n";
  for (const char* name : {"one document", "lognormal-512", "lognormal-128"}) {
    std::vector<double> forward, backward, both, ratios;
    for (const AttentionLine& line : result.attention)
      if (line.documents == name) {
        forward.push_back(line.forward);
        backward.push_back(line.backward);
        both.push_back(line.both);
        if (const double ratio = best_ratio(line); ratio > 0) ratios.push_back(ratio);
      }
    text += fmt::format("| {}, median of {} | {:.1f} % | {:.1f} % | {:.1f} % | {} |\n", name, both.size(), 100 * median_of(forward), 100 * median_of(backward), 100 * median_of(both),
                        ratios.empty() ? "" : fmt::format("{:.2f}", median_of(ratios)));
  }
  return text + "\n";
}

std::string memory_text(const KernelsResult& result) {
  if (result.memory.empty()) return "";
  std::string text = "Operations bound by memory, at the sizes of shape a, f32: bytes that have to be read and written, beside a copy of as many.\n\n"
                     "| operation | MB | us | GB/s | copy GB/s | share of the copy |\n|---|---:|---:|---:|---:|---:|\n";
  for (const MemoryLine& line : result.memory)
    text += fmt::format("| {} | {:.1f} | {:.0f} | {:.1f} | {:.1f} | {:.0f} % |\n", line.operation, line.bytes / 1e6, 1e6 * line.seconds, line.bytes / line.seconds / 1e9,
                        line.bytes / line.copy / 1e9, 100 * line.copy / line.seconds);
  return text + "\n";
}

nlohmann::ordered_json times_json(const std::vector<KernelTime>& times) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const KernelTime& time : times) {
    const Spread ratio = spread_of(time.ratios);
    all.push_back({{"name", time.name}, {"seconds", time.seconds}, {"median_seconds", median_of(time.seconds)}, {"share", time.share}, {"ratio", {{"low", ratio.low}, {"median", ratio.median}, {"high", ratio.high}}}});
  }
  return all;
}

}  // namespace

std::string KernelsResult::markdown() const {
  std::string text = fmt::format("Kernels on {}, {}, one thread, by processor time.\n\n", machine, date);
  text += products_text(*this) + attention_text(*this) + memory_text(*this);
  for (const std::string& library : libraries) text += "- " + library + "\n";
  for (const std::string& gate : gates) text += "- " + gate;
  return text;
}

std::string KernelsResult::to_json() const {
  using Json = nlohmann::ordered_json;
  Json object = {{"machine", machine}, {"date", date}, {"libraries", libraries}, {"gates", gates}, {"products", Json::array()}, {"product_medians", Json::array()}, {"attention", Json::array()}, {"memory", Json::array()}};
  for (const ProductLine& line : products)
    object["products"].push_back({{"form", line.form}, {"tokens", line.tokens}, {"outputs", line.outputs}, {"inputs", line.inputs}, {"flops", line.flops}, {"probe", line.probe}, {"times", times_json(line.times)}});
  if (!products.empty())
    for (const char* form : {"nt", "nn", "tn"})
      for (size_t side = 0; side < products.front().times.size(); ++side) {
        const FormMedian found = over_shapes(*this, form, side);
        object["product_medians"].push_back({{"form", form}, {"name", products.front().times[side].name}, {"share", {{"low", found.share.low}, {"median", found.share.median}, {"high", found.share.high}}}, {"ratio", found.ratio}});
      }
  for (const AttentionLine& line : attention)
    object["attention"].push_back({{"documents", line.documents}, {"row", line.row}, {"document_count", line.document_count}, {"pairs", line.pairs}, {"probe", line.probe}, {"forward", line.forward}, {"backward", line.backward}, {"both", line.both}, {"times", times_json(line.times)}});
  for (const MemoryLine& line : memory)
    object["memory"].push_back({{"operation", line.operation}, {"bytes", line.bytes}, {"seconds", line.seconds}, {"copy_seconds", line.copy}});
  return object.dump();
}

}  // namespace quire::bench
