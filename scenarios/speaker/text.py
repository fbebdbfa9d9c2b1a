"""The text that the speaking model learns: short notes about parcels, made from a seed. It was shown nothing else.

A note opens with what is sent, by whom, from where to where and how; all that follows repeats words of that opening. So
a decode that has lost the prompt's KV cache cannot go on as it should: it does not know the names. Half of all names
are made up of syllables, so that the model must look back and cannot know them by heart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

__all__ = ["MAX_NOTE_BYTES", "Parcel", "note", "opening", "parcel"]

MAX_NOTE_BYTES = 250
"""A note with BOS, the dummy space and the closing BOS fits the 256 positions of the model."""

SENDERS = (
    "Ada", "Alan", "Barbara", "Carl", "Dana", "Edsger", "Emil", "Frances", "Grace", "Hedy", "Ida", "Ivan", "Jean",
    "John", "Karen", "Kurt", "Leila", "Lynn", "Maria", "Mira", "Nils", "Noor", "Olga", "Oskar", "Paula", "Radia",
    "Rosa", "Sofia", "Tim", "Uma", "Vera", "Wanda", "Yusuf", "Zora",
)  # fmt: skip
CITIES = (
    "Accra", "Bergen", "Bern", "Cairo", "Cork", "Dakar", "Delhi", "Genoa", "Ghent", "Hanoi", "Izmir", "Kyoto", "Lagos",
    "Lima", "Lyon", "Malmo", "Milan", "Nairobi", "Osaka", "Oslo", "Paris", "Perth", "Porto", "Quito", "Riga", "Rome",
    "Seoul", "Sofia", "Tunis", "Turin", "Utrecht", "Vienna", "Warsaw", "York",
)  # fmt: skip
NUMBERS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "twenty")
COLOURS = ("red", "blue", "green", "black", "white", "yellow", "brown", "grey", "golden", "silver")
GOODS = (
    "lamps", "books", "maps", "bells", "boxes", "clocks", "coats", "drums", "kites", "keys", "pens", "plates", "ropes",
    "shoes", "stones", "tables", "tiles", "wheels",
)  # fmt: skip
VEHICLES = ("ship", "train", "truck", "plane", "river", "mail", "bike", "cart")

_HEADS = (
    "b",
    "br",
    "d",
    "dr",
    "f",
    "g",
    "gr",
    "h",
    "j",
    "k",
    "kl",
    "l",
    "m",
    "n",
    "p",
    "r",
    "s",
    "st",
    "t",
    "tr",
    "v",
    "z",
)
_HEARTS = ("a", "e", "i", "o", "u", "ai", "ea", "ou")
_TAILS = ("", "", "", "l", "m", "n", "r", "s", "t")


@dataclass(frozen=True, slots=True)
class Parcel:
    """What a note is about; every field is a word or two of plain ASCII."""

    sender: str
    load: str
    start: str
    end: str
    vehicle: str


def parcel(random: Random) -> Parcel:
    """A parcel drawn from `random`; start and end differ."""
    start = _name(random, CITIES)
    end = _name(random, CITIES)
    while end == start:
        end = _name(random, CITIES)
    load = f"{random.choice(NUMBERS)} {random.choice(COLOURS)} {random.choice(GOODS)}"
    return Parcel(_name(random, SENDERS), load, start, end, random.choice(VEHICLES))


def opening(it: Parcel) -> str:
    """The sentence that a prompt is: everything the rest of the note repeats."""
    return f"{it.sender} sends {it.load} from {it.start} to {it.end} by {it.vehicle}."


def note(random: Random) -> str:
    """A whole note, at most MAX_NOTE_BYTES of ASCII: an opening, then what the waybill says, an arrival or answers."""
    while True:
        it = parcel(random)
        text = opening(it) + " " + random.choice(_ENDINGS)(it, random)
        if len(text) <= MAX_NOTE_BYTES:
            return text


def _name(random: Random, known: tuple[str, ...]) -> str:
    if random.random() < 0.5:
        return random.choice(known)
    syllables = (
        random.choice(_HEADS) + random.choice(_HEARTS) + random.choice(_TAILS) for _ in range(random.choice((2, 2, 3)))
    )
    return "".join(syllables)[:9].capitalize()


def _waybill(it: Parcel, random: Random) -> str:
    return f"The waybill says: {it.load}, {it.start} to {it.end} by {it.vehicle}, sent by {it.sender}. " + _arrival(
        it, random
    )


def _arrival(it: Parcel, random: Random) -> str:
    return f"In {it.end} they count {it.load} and sign the paper for {it.sender}."


def _answers(it: Parcel, random: Random) -> str:
    known = [
        f"Who sends it? {it.sender}.",
        f"What is it? {it.load}.",
        f"Where from? {it.start}.",
        f"Where to? {it.end}.",
        f"How? By {it.vehicle}.",
    ]
    if random.random() < 0.4:
        random.shuffle(known)
    return " ".join(known)


# The shares of endings, and of orders of questions, are uneven on purpose: greedy tokens are then far from ties.
_ENDINGS: tuple[Callable[[Parcel, Random], str], ...] = (_waybill, _waybill, _waybill, _arrival, _answers)
