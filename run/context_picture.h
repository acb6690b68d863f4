// A context plan as a picture: a packed row's mask coloured by rank, who holds what, and the exchanges as arrows. SVG, written by hand.
#pragma once
#include <string>

#include "parallel/context_plan.h"

namespace quire {

/// What stands above the picture.
struct PictureText {
  std::string title, subtitle;
};

/// Queries downwards, keys across. An area has the colour of the rank that computes it: full where it holds the keys too, light where it receives
/// them; grey is what a causal mask without documents would also compute. Beside it one arrow for each transfer, labelled with its rows; with many
/// ranks a table of senders and receivers instead. Of the layers with this window. The number of elements does not grow with that of tokens.
std::string context_picture(const ContextPlan& plan, const Documents& whole, int64_t window, const PictureText& text);

/// `#rrggbb` of a rank, so that neighbours differ.
std::string rank_colour(int64_t rank, int64_t ranks);

}  // namespace quire
