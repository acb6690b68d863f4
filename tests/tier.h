// The two tiers of the suite (tools/test and tools/test --all), and combinations of named parameters for them.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace quire::test {

/// Whether the full products were asked for: environment QUIRE_TEST_TIER=all, as `tools/test --all` sets it.
inline bool all_tier() {
  const char* tier = std::getenv("QUIRE_TEST_TIER");
  return tier != nullptr && std::string_view(tier) == "all";
}

/// A parameter of a test, with the values it may take.
struct TestParameter {
  std::string name;
  std::vector<std::string> values;
};
using TestParameters = std::vector<TestParameter>;

/// One value of every parameter. The parameters outlive it.
class Combination {
 public:
  Combination(const TestParameters& parameters, std::vector<size_t> chosen) : parameters_(&parameters), chosen_(std::move(chosen)) {}

  /// The value of a parameter; throws std::out_of_range for a name that is none.
  const std::string& operator[](std::string_view name) const { return (*parameters_)[place(name)].values[chosen_[place(name)]]; }
  bool is(std::string_view name, std::string_view value) const { return (*this)[name] == value; }
  const std::vector<size_t>& chosen() const { return chosen_; }

  /// `packing=bfd threads=2 ...` of the parameters named, or of all.
  std::string text(const std::vector<std::string>& names = {}) const {
    std::string result;
    for (const TestParameter& parameter : *parameters_)
      if (names.empty() || std::find(names.begin(), names.end(), parameter.name) != names.end())
        result += (result.empty() ? "" : " ") + parameter.name + "=" + (*this)[parameter.name];
    return result;
  }

 private:
  size_t place(std::string_view name) const {
    for (size_t p = 0; p < parameters_->size(); ++p)
      if ((*parameters_)[p].name == name) return p;
    throw std::out_of_range("no parameter " + std::string(name));
  }
  const TestParameters* parameters_;
  std::vector<size_t> chosen_;
};
using Combinations = std::vector<Combination>;

/// Every combination; the last parameter changes fastest.
inline Combinations full_product(const TestParameters& parameters) {
  Combinations all;
  std::vector<size_t> chosen(parameters.size(), 0);
  for (;;) {
    all.emplace_back(parameters, chosen);
    size_t p = parameters.size();
    while (p > 0 && ++chosen[p - 1] == parameters[p - 1].values.size()) chosen[--p] = 0;
    if (p == 0) return all;
  }
}

/// Which values of different parameters have met in a combination.
class PairTable {
 public:
  explicit PairTable(const TestParameters& parameters) : parameters_(parameters) {
    for (const TestParameter& parameter : parameters) {
      first_.push_back(values_);
      values_ += parameter.values.size();
    }
    met_.resize(values_ * values_, false);
    used_.resize(values_, 0);
  }
  bool met(size_t p, size_t v, size_t q, size_t w) const { return met_[(first_[p] + v) * values_ + first_[q] + w]; }
  size_t used(size_t p, size_t v) const { return used_[first_[p] + v]; }
  void add(const std::vector<size_t>& chosen) {
    for (size_t p = 0; p < chosen.size(); ++p) {
      ++used_[first_[p] + chosen[p]];
      for (size_t q = 0; q < chosen.size(); ++q) met_[(first_[p] + chosen[p]) * values_ + first_[q] + chosen[q]] = true;
    }
  }
  /// Calls `found(p, v, q, w)`, p before q, for the pairs that have not met, in order, until it returns false.
  template <class F>
  void each_missing(F&& found) const {
    for (size_t p = 0; p < parameters_.size(); ++p)
      for (size_t q = p + 1; q < parameters_.size(); ++q)
        for (size_t v = 0; v < parameters_[p].values.size(); ++v)
          for (size_t w = 0; w < parameters_[q].values.size(); ++w)
            if (!met(p, v, q, w) && !found(p, v, q, w)) return;
  }

 private:
  const TestParameters& parameters_;
  std::vector<size_t> first_, used_;  // number of each parameter's first value in the table of all values
  std::vector<bool> met_;
  size_t values_ = 0;
};

/// Few combinations in which every two values of two parameters meet. Greedy and deterministic: each combination starts from the first two
/// values that have not met yet; every other parameter then takes the value that meets most new partners among those chosen so far.
inline Combinations pairwise(const TestParameters& parameters) {
  if (parameters.size() < 2) return full_product(parameters);
  constexpr size_t open = static_cast<size_t>(-1);
  PairTable table(parameters);
  Combinations result;
  for (;;) {
    std::vector<size_t> chosen(parameters.size(), open);
    table.each_missing([&](size_t p, size_t v, size_t q, size_t w) {
      chosen[p] = v;
      chosen[q] = w;
      return false;
    });
    if (std::all_of(chosen.begin(), chosen.end(), [](size_t v) { return v == open; })) return result;
    for (size_t p = 0; p < parameters.size(); ++p) {
      if (chosen[p] != open) continue;
      size_t best = 0, most = 0;
      for (size_t v = 0; v < parameters[p].values.size(); ++v) {
        size_t fresh = 0;
        for (size_t q = 0; q < parameters.size(); ++q)
          if (chosen[q] != open && !table.met(p, v, q, chosen[q])) ++fresh;
        if (v == 0 || fresh > most || (fresh == most && table.used(p, v) < table.used(p, best))) {
          best = v;
          most = fresh;
        }
      }
      chosen[p] = best;
    }
    table.add(chosen);
    result.emplace_back(parameters, chosen);
  }
}

/// Pairs of values of two parameters that no combination holds, as text; empty when every pair is covered.
inline std::vector<std::string> missing_pairs(const TestParameters& parameters, const Combinations& combinations) {
  std::vector<std::string> missing;
  for (size_t p = 0; p < parameters.size(); ++p)
    for (size_t q = p + 1; q < parameters.size(); ++q)
      for (size_t v = 0; v < parameters[p].values.size(); ++v)
        for (size_t w = 0; w < parameters[q].values.size(); ++w)
          if (std::none_of(combinations.begin(), combinations.end(), [&](const Combination& c) { return c.chosen()[p] == v && c.chosen()[q] == w; }))
            missing.push_back(parameters[p].name + "=" + parameters[p].values[v] + " " + parameters[q].name + "=" + parameters[q].values[w]);
  return missing;
}

/// What this tier runs: every combination, or a set in which all pairs meet.
inline Combinations combinations_of_tier(const TestParameters& parameters) { return all_tier() ? full_product(parameters) : pairwise(parameters); }

}  // namespace quire::test
