// Documents that are not there: lengths by a law, for plans without data.
#pragma once
#include <memory>
#include <string>

#include "data/corpus.h"

namespace quire {

/// A million documents with lengths drawn from the law, which is text: `lognormal:MEAN` (tokens; sigma of the logarithm is 1), `lognormal:MEAN:SIGMA` or `fixed:LENGTH`. The same for the same
/// text. Tokens can not be read (StateError). Throws ConfigError for another text.
std::shared_ptr<const Corpus> drawn_corpus(const std::string& law);

}  // namespace quire
