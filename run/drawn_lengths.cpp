#include "run/drawn_lengths.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numbers>
#include <vector>

#include "runtime/error.h"
#include "runtime/random.h"

namespace quire {

namespace {

constexpr int64_t drawn_documents = int64_t{1} << 20, longest_over_mean = 64;

class DrawnCorpus final : public Corpus {
 public:
  DrawnCorpus(const std::string& law, double mean, double sigma) : stream_(stream_of(law)), mean_(mean), sigma_(sigma) {
    info_.path = law;
    info_.vocabulary_size = 1;
    info_.digest = stream_;
    info_.longest = std::llround(mean_ * (sigma_ > 0 ? longest_over_mean : 1));
  }
  int64_t document_count() const override { return drawn_documents; }
  DocumentInfo document(int64_t d) const override {
    const auto uniform = [&](uint64_t number) { return (static_cast<double>(random_bits(1, stream_, static_cast<uint64_t>(d), number) >> 11) + 0.5) * 0x1p-53; };
    const double normal = sigma_ > 0 ? std::sqrt(-2 * std::log(uniform(0))) * std::cos(2 * std::numbers::pi * uniform(1)) : 0;  // Box and Muller, 1958
    const double length = mean_ * std::exp(sigma_ * normal - sigma_ * sigma_ / 2);
    DocumentInfo info;
    info.length = std::clamp<int64_t>(std::llround(length), 2, std::max<int64_t>(info_.longest, 2));
    info.valid = info.length - 1;
    return info;
  }
  void read(int64_t, int64_t, std::span<int32_t>) const override { fail<StateError>("plan", "documents of {} have lengths alone", info_.path); }
  void read_mask(int64_t, int64_t, std::span<uint8_t> mask) const override { std::ranges::fill(mask, uint8_t{1}); }

 private:
  uint64_t stream_;
  double mean_, sigma_;
};

}  // namespace

std::shared_ptr<const Corpus> drawn_corpus(const std::string& law) {
  std::vector<std::string> parts{""};
  for (const char c : law) {
    if (c == ':') parts.emplace_back();
    else parts.back() += c;
  }
  const auto number = [](const std::string& text, double least, double most) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size() && value >= least && value <= most ? value : -1;
  };
  const bool lognormal = parts[0] == "lognormal" && (parts.size() == 2 || parts.size() == 3), fixed = parts[0] == "fixed" && parts.size() == 2;
  const double mean = lognormal || fixed ? number(parts[1], 2, 1 << 24) : -1, sigma = fixed ? 0 : parts.size() == 3 ? number(parts[2], 0, 4) : 1;
  if (mean < 0 || sigma < 0)
    fail<ConfigError>("plan", "--lengths is '{}'; allowed: lognormal:MEAN or lognormal:MEAN:SIGMA (tokens from 2 to 2^24, sigma from 0 to 4), fixed:LENGTH", law);
  return std::make_shared<DrawnCorpus>(law, mean, sigma);
}

}  // namespace quire
