from nbcomm.sentences import WIDTH, in_one_line, wrapped


def test_lines_break_between_words_only():
    text = "Nothing was run: " + "ranks 0-3 are dead, " * 8 + "/a/long/path/" + "x" * 100
    broken = wrapped(text)
    assert broken.split() == text.split()
    assert all(len(line) <= WIDTH or " " not in line for line in broken.splitlines())


def test_short_lines_and_empty_ones_stay():
    text = "StartError: the world did not start.\n\n  rank0.log:\n    killed\n"
    assert wrapped(text) == text


def test_a_row_of_a_list_goes_on_further_right():
    assert wrapped("These are free:\n  " + "word " * 20).splitlines()[-1].startswith("    word")


def test_rows_become_a_sentence():
    assert in_one_line("The calls differ:\n  rank 0 called gather\nNothing was moved.") == (
        "The calls differ: rank 0 called gather. Nothing was moved."
    )
