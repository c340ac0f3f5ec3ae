"""Says in words by what the odd side of a hang is known."""

from collections.abc import Sized

from ncclwatch_server.judge.theory.histories.odd_side import Sign

_WORDS = {
    Sign.EXCEPTION: "{it} came there with an exception in hand",
    Sign.NOT_JOINED: "Join does not make its call for ranks that have run out of batches",
    Sign.THREADS: "two threads of each rank use one group, and take turns differently on each",
    Sign.SKIPPED: "{it} skipped a call that the others made",
    Sign.MADE_MORE: "{it} made a call that the others did not make",
    Sign.SLIPPED_FIRST: "{it} fell out of step with the others first",
    Sign.DEPARTED_FIRST: "{it} departed from {its} own earlier iterations first",
    Sign.MINORITY: "{it} differ{s} from the majority",
    Sign.LEFT_AT_TEST: "{it} left a function or a loop at a test of the rank",
    Sign.DEPARTS: "{it} depart{s} from {its} own earlier iterations",
    Sign.ARGUMENTS: "{its} arguments are not those of {its} own earlier calls at that line",
    Sign.BACKWARD_LEFT: "{it} left out the backward of {its} last forward pass, in which the others reduce gradients",
    Sign.LEFT_LOADER: "{it} left a data loader that the others still draw from",
    Sign.TEST_OF_RANK: "{its} call lies under a test of the rank",
    Sign.LEFT_LOOP: "{it} left a loop that the others are still in",
    Sign.NONE: "the evidence does not decide which side is wrong",
}
_ONE = {"it": "it", "its": "its", "s": "s"}
_SEVERAL = {"it": "they", "its": "their", "s": ""}


def sign_words(sign: Sign, ranks: Sized) -> str:
    """Say by what *ranks* are known to be the odd side, as a clause that begins with a pronoun for them."""
    return _WORDS[sign].format_map(_ONE if len(ranks) == 1 else _SEVERAL)
