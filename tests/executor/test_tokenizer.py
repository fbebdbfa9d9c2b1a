"""The tokenizer: ids and printed bytes equal run.c's on the golden runs, and the heap equals the slow loop."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.tokenizer import BYTE_VOCABULARY, Tokenizer, byte_tokenizer, load_tokenizer
from fleet.errors import DescriptionError
from tests.checkpoint_files import tokenizer_bytes

SHARED = Path(__file__).parents[3] / "shared" / "data" / "llama2c_golden"
GOLDEN = json.loads((SHARED / "golden.json").read_text()) if SHARED.is_dir() else []
needs_shared = pytest.mark.skipif(not GOLDEN, reason="shared/data/llama2c_golden is not beside the project")

BASE = [(0.0, b"<unk>"), (0.0, b"\n<s>\n"), (0.0, b"\n</s>\n"), *((0.0, b"<0x%02X>" % byte) for byte in range(256))]


def made(*extra: tuple[float, bytes]) -> Tokenizer:
    """The base pieces of every llama2.c vocabulary, and `extra` ones behind them."""
    rows = [*BASE, *extra]
    return Tokenizer([piece for _, piece in rows], [score for score, _ in rows], "made")


def slow_encode(tokenizer: Tokenizer, raw: bytes) -> list[int]:
    """run.c's encode as its loops stand: the oracle for the heap."""
    ids = {piece: token for token, piece in reversed(list(enumerate(tokenizer.pieces)))}
    tokens = [1]
    if raw:
        tokens.append(ids.get(b" ", 35))
    buffer = b""
    for at, byte in enumerate(raw):
        if byte & 0xC0 != 0x80:
            buffer = b""
        buffer += bytes([byte])
        if at + 1 < len(raw) and raw[at + 1] & 0xC0 == 0x80 and len(buffer) < 4:
            continue
        tokens += [ids[buffer]] if buffer in ids else [b + 3 for b in buffer]
        buffer = b""
    while True:
        best_score, best_id, best_at = -1e10, -1, -1
        for at in range(len(tokens) - 1):
            token = ids.get(tokenizer.pieces[tokens[at]] + tokenizer.pieces[tokens[at + 1]], -1)
            if token != -1 and tokenizer.scores[token] > best_score:
                best_score, best_id, best_at = tokenizer.scores[token], token, at
        if best_at == -1:
            return tokens
        tokens[best_at : best_at + 2] = [best_id]


def refused(tmp_path: Path, data: bytes, vocab_size: int) -> str:
    path = tmp_path / "tok.bin"
    path.write_bytes(data)
    with pytest.raises(DescriptionError) as caught:
        load_tokenizer(str(path), vocab_size, "stories")
    return str(caught.value)


@needs_shared
@pytest.mark.shared
@pytest.mark.parametrize("run", GOLDEN, ids=lambda run: run["name"])
def test_golden_prompts_and_texts_are_equal_to_the_byte(run):
    tokenizer = load_tokenizer(str(SHARED / "tok512.bin"), 512)
    assert tokenizer.encode(run["prompt"] or "") == run["prompt_tokens"]
    assert tokenizer.decode(run["token_ids"]).hex() == run["text_hex"]


@needs_shared
@pytest.mark.shared
def test_all_golden_runs_were_looked_at():
    assert len(GOLDEN) == 20


@needs_shared
@pytest.mark.shared
@given(text=st.text(alphabet=st.sampled_from(" theanduro.LilyTim\n\té日"), max_size=60))
@settings(max_examples=150, deadline=None)
def test_the_heap_equals_the_slow_loop_on_a_real_vocabulary(text):
    tokenizer = load_tokenizer(str(SHARED / "tok512.bin"), 512)
    assert tokenizer.encode(text) == slow_encode(tokenizer, text.encode())


# Every letter has a piece, so that longer pieces can grow; few letters and scores make overlaps and ties common.
LETTERS = [(0.0, b"a"), (0.0, b"b"), (-3.0, b" "), (0.0, b"\xc3\xa9")]
merged_pieces = st.lists(
    st.tuples(
        st.sampled_from([0.0, -0.0, -1.0, -1.5, 2.0, -1e10, -2e10, 1e9]),
        st.lists(st.sampled_from([b"a", b"b"]), min_size=2, max_size=4).map(b"".join)
        | st.lists(st.sampled_from([b"a", b"b", b" ", b"\xc3\xa9"]), min_size=2, max_size=3).map(b"".join),
    ),
    min_size=4,
    max_size=25,
    unique_by=lambda row: row[1],
)


@given(
    extra=merged_pieces,
    raw=st.lists(st.sampled_from([b"a", b"b", b"ab", b"aab", b" ", b"\xc3\xa9", b"\xff"]), min_size=3, max_size=20),
)
@settings(max_examples=300, deadline=None)
def test_the_heap_equals_the_slow_loop_on_any_vocabulary_and_bytes(extra, raw):
    tokenizer = made(*LETTERS, *extra)
    text = b"".join(raw).decode("utf-8", "surrogateescape")
    assert tokenizer.encode(text) == slow_encode(tokenizer, b"".join(raw))


@given(text=st.text(max_size=50))
@settings(max_examples=100, deadline=None)
def test_bytes_come_back_where_they_are_printable(text):
    tokenizer = byte_tokenizer()
    if "\0" in text:
        return
    tokens = tokenizer.encode(text)
    raw = text.encode("utf-8", "surrogatepass")
    assert tokens == ([1, 35, *(byte + 3 for byte in raw)] if raw else [1])
    kept = bytes(byte for byte in raw if 0x20 <= byte <= 0x7E or 0x09 <= byte <= 0x0D)
    assert tokenizer.decode(tokens) == kept + b"\n"


def test_the_byte_tokenizer_has_259_pieces_and_is_a_valid_file(tmp_path):
    tokenizer = byte_tokenizer()
    assert len(tokenizer.pieces) == BYTE_VOCABULARY == 259
    path = tmp_path / "bytes.bin"
    path.write_bytes(tokenizer_bytes(list(zip(tokenizer.scores, tokenizer.pieces, strict=True))))
    again = load_tokenizer(str(path), 259)
    assert (again.pieces, again.scores) == (tokenizer.pieces, tokenizer.scores)


def test_empty_text_is_bos_alone_and_other_text_gets_a_dummy_space():
    tokenizer = made((-1.0, b" "), (-2.0, b"a"), (-3.0, b" a"))
    assert tokenizer.encode("") == [1]
    assert tokenizer.encode(" ") == [1, 259, 259]
    assert tokenizer.encode("a") == [1, 261]


def test_of_equal_scores_the_first_pair_merges():
    assert made((0.0, b"a"), (-1.0, b"aa")).encode("aaa")[2:] == [260, 259]


def test_a_score_at_the_floor_never_merges():
    assert made((0.0, b"a"), (-1e10, b"aa")).encode("aa")[2:] == [259, 259]


def test_long_prompts_are_merged_fast_enough_to_be_counted():
    tokenizer = made(*((-float(n), b"ab" * (1 << n)) for n in range(1, 8)), (0.0, b"a"), (0.0, b"b"), (1.0, b"ab"))
    tokens = tokenizer.encode("ab" * 20_000)
    assert b"".join(tokenizer.pieces[token] for token in tokens[2:]) == b"ab" * 20_000
    assert len(tokens) < 200


def test_undecodable_bytes_of_a_command_line_are_taken_as_bytes():
    tokenizer = byte_tokenizer()
    assert tokenizer.encode("\udcff\udc80") == [1, 35, 0xFF + 3, 0x80 + 3]
    assert tokenizer.encode("\ud800")[2:] == [byte + 3 for byte in b"\xed\xa0\x80"]


def test_stray_continuation_bytes_are_grouped_by_four_as_in_run_c():
    tokenizer = made((0.0, b"\x80\x80\x80\x80"), (0.0, b"\xe2\x82\xac"))
    raw = b"\x80" * 5 + b"\xe2\x82\xac"
    expected = slow_encode(tokenizer, raw)
    assert tokenizer.encode(raw.decode("utf-8", "surrogateescape")) == expected
    assert expected[2:] == [259, 0x83, 260]


def test_a_zero_byte_in_the_prompt_is_refused():
    with pytest.raises(DescriptionError, match="zero byte"):
        byte_tokenizer().encode("a\0b")


def test_a_byte_without_piece_or_fallback_is_refused():
    with pytest.raises(DescriptionError, match=r"byte 0xE9|byte 0xC3"):
        Tokenizer([b"<unk>", b"<s>", b"</s>", b" ", b"a"], [0.0] * 5, "tiny").encode("aé")


def test_decode_follows_run_c():
    tokenizer = made((0.0, b" a"), (0.0, b"a"), (0.0, b"\x07"), (0.0, b"\t"), (0.0, b"<0x4"), (0.0, b""))
    a_spaced, a, bell, tab, short, empty = range(259, 265)
    assert tokenizer.decode([1]) == b"\n"
    assert tokenizer.decode([1, a_spaced, a_spaced, a]) == b"a aa\n"
    assert tokenizer.decode([1, bell, tab, empty, 3 + 0x41, 3 + 0xC3, 3]) == b"\tA\n"
    assert tokenizer.decode([1, short]) == b"\n"
    assert tokenizer.decode([1, a, 1, a]) == b"a\n"
    assert tokenizer.decode([1, 2]) == b"\n</s>\n\n"
    with pytest.raises(DescriptionError, match="no piece for id 265"):
        tokenizer.decode([1, 265])


def test_pieces_end_at_a_zero_byte_as_c_strings_do(tmp_path):
    path = tmp_path / "tok.bin"
    path.write_bytes(tokenizer_bytes([(0.0, b"a\0b"), (1.0, b"c")]))
    assert load_tokenizer(str(path), 2).pieces == (b"a", b"c")


def glibc_bsearch(pieces: list[bytes], wanted: bytes) -> int:
    order = sorted(range(len(pieces)), key=lambda token: pieces[token])
    low, high = 0, len(order)
    while low < high:
        middle = (low + high) // 2
        if wanted == pieces[order[middle]]:
            return order[middle]
        low, high = (low, middle) if wanted < pieces[order[middle]] else (middle + 1, high)
    return -1


@given(pieces=st.lists(st.sampled_from([b"x", b"y", b"z", b"xy", b"q"]), min_size=1, max_size=30))
@settings(max_examples=100, deadline=None)
def test_double_pieces_are_found_as_c_finds_them(pieces):
    tokenizer = Tokenizer([b"<unk>", b"<s>", b"</s>", b" ", *pieces], [0.0] * (4 + len(pieces)), "double")
    for letter in (b"x", b"y", b"z", b"q"):
        if letter in pieces:
            found = glibc_bsearch(list(tokenizer.pieces), letter)
            assert tokenizer.encode(letter.decode())[-1] == found


def test_no_tokenizer_is_needed_for_the_byte_vocabulary_only():
    assert load_tokenizer(None, 259).pieces == byte_tokenizer().pieces
    with pytest.raises(DescriptionError, match=r"stories260K: tokenizer is missing.* 512 pieces.*--tokenizer"):
        load_tokenizer(None, 512, "stories260K")


GOOD = [(0.0, b"<unk>"), (-1.0, b"ab"), (-2.0, b"c")]


def test_a_tokenizer_of_another_vocabulary_is_refused(tmp_path):
    text = refused(tmp_path, tokenizer_bytes(GOOD), 4)
    assert "tokenizer of another vocabulary: 3 pieces, stories has 4" in text
    assert "another vocabulary" in refused(tmp_path, tokenizer_bytes(GOOD), 2)


@pytest.mark.parametrize("cut", [1, 3, 8, 10])
def test_a_truncated_tokenizer_is_refused(tmp_path, cut):
    text = refused(tmp_path, tokenizer_bytes(GOOD)[:-cut], 3)
    assert "truncated" in text or "another vocabulary: 2 pieces" in text


def test_trailing_bytes_of_a_tokenizer_are_refused(tmp_path):
    assert "5 trailing bytes after 3 pieces" in refused(tmp_path, tokenizer_bytes(GOOD) + b"abcde", 3)


def test_absurd_lengths_are_refused(tmp_path):
    assert "max_token_length is 0" in refused(tmp_path, b"", 3)
    assert "max_token_length is -1" in refused(tmp_path, struct.pack("<i", -1), 3)
    assert "max_token_length is 538,976,288" in refused(tmp_path, b" " * 40, 3)
    bad = tokenizer_bytes(GOOD)[:4] + struct.pack("<fi", 0.0, -7) + b"abc"
    assert "piece 0 has length -7" in refused(tmp_path, bad, 3)


def test_scores_that_are_not_finite_are_all_told(tmp_path):
    text = refused(tmp_path, tokenizer_bytes([(math.nan, b"a"), (0.0, b"b"), (math.inf, b"c")]), 3)
    assert len(text.splitlines()) == 2
    assert "piece 0 has the score nan" in text
    assert "piece 2 has the score inf" in text


def test_a_missing_tokenizer_and_a_folder_are_refused(tmp_path):
    for path, said in ((tmp_path / "absent", "no such file"), (tmp_path, "is a folder")):
        with pytest.raises(DescriptionError, match=said):
            load_tokenizer(str(path), 3)


@given(data=st.binary(max_size=80))
@settings(max_examples=200, deadline=None)
def test_arbitrary_bytes_give_a_tokenizer_or_a_description_error(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "tok.bin"
    path.write_bytes(struct.pack("<i", 20) + data)
    try:
        tokenizer = load_tokenizer(str(path), 3)
    except DescriptionError:
        return
    assert len(tokenizer.pieces) == 3
