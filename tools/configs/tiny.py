#!/usr/bin/env python3
"""Writes tiny.txt, the text of tiny.toml: short documents of very different lengths between lines of `%`, always the same."""
import random

r = random.Random(5)
ANIMALS = "fox heron mole otter wren badger snail moth toad owl hare goat".split()
PLACES = "by the mill,under the bridge,in the orchard,at the edge of the wood,behind the bakery,on the old wall,near the well".split(",")
THINGS = "a button,a brass key,half a biscuit,a blue feather,a wet map,three nuts,a letter without a name,a lantern,a spool of thread".split(",")
MOODS = "pleased,cross,curious,sleepy,proud,worried,quite sure of it".split(",")
WEATHER = "It rained.,The sun came out.,A wind got up.,Snow lay on the roofs.,Fog hid the road.,The evening was warm.".split(",")
ADVICE = ["Count the eggs before you praise the hen.", "A short rope is long enough for a small goat.", "Who borrows a ladder should return it standing.",
          "Ask the road, not the shoes.", "Even a slow clock knows when it is noon.", "Do not salt the soup in the dark.",
          "A closed door keeps no secrets from the mouse.", "Bread first, butter second, talk last."]
FOODS = {"soup": "leeks,carrots,barley,an onion", "pie": "apples,flour,butter,cinnamon", "porridge": "oats,milk,salt,honey",
         "salad": "beans,radishes,vinegar,parsley"}


def story(length):
    hero, friend = r.sample(ANIMALS, 2)
    lines = [f"Once a {hero} lived {r.choice(PLACES)}."]
    for _ in range(length):
        lines.append(r.choice([
            f"One day the {hero} found {r.choice(THINGS)} {r.choice(PLACES)}.", r.choice(WEATHER),
            f"The {friend} came along and was {r.choice(MOODS)}.", f'"What have you there?" said the {friend}.',
            f'"Only {r.choice(THINGS)}," said the {hero}.', f"So the {hero} and the {friend} shared {r.choice(THINGS)}.",
            f"The {hero} hid it {r.choice(PLACES)} and was {r.choice(MOODS)}."]))
    lines.append(f"And the {friend} was {r.choice(MOODS)} ever after.")
    return "\n".join(" ".join(lines[i:i + 3]) for i in range(0, len(lines), 3))


def sums():
    rows = []
    for _ in range(r.randint(1, 6)):
        a, b = r.randint(0, 20), r.randint(0, 20)
        rows.append(f"{a} plus {b} is {a + b}.")
    return "\n".join(rows)


def recipe():
    dish = r.choice(sorted(FOODS))
    parts = FOODS[dish].split(",")
    r.shuffle(parts)
    return f"To make {dish} for {r.randint(2, 9)}: take {', '.join(parts[:-1])} and {parts[-1]}. Stir for {r.randint(2, 40)} minutes. Serve."


documents = []
for _ in range(180):
    kind = r.random()
    if kind < 0.1: documents.append(r.choice(ADVICE).split()[0])
    elif kind < 0.3: documents.append(r.choice(ADVICE))
    elif kind < 0.5: documents.append(sums())
    elif kind < 0.65: documents.append(recipe())
    elif kind < 0.95: documents.append(story(r.randint(1, 6)))
    else: documents.append(story(r.randint(12, 30)))
documents[7] = "%%"   # no separator: a line with more than the separator belongs to its document
documents[40] = "A"   # one byte
with open(__file__.replace(".py", ".txt"), "w") as file:
    file.write("\n%\n".join(documents) + "\n")
