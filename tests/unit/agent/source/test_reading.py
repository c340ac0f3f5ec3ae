"""What the agent reads out of the user's source round a call site."""

import os
import textwrap
from pathlib import Path

import pytest

from ncclwatch.contract.model.rank import CallSite, SourceNote
from ncclwatch_agent.source.reading import FILE_BYTES_MAX, SourceReader

HERE = "# here"


def note_of(tmp_path: Path, source: str) -> SourceNote:
    """Return the note about the line marked with `# here`."""
    text = textwrap.dedent(source)
    path = tmp_path / "train.py"
    path.write_text(text)
    line = next(number for number, line in enumerate(text.split("\n"), 1) if HERE in line)
    return SourceReader().note_of(CallSite(file=str(path), line=line, function="train"))


CONDITIONS = [
    ("if rank == 0:\n    save()\n    dist.barrier()  # here", "if rank == 0"),
    ("if dist.get_rank() == 0: dist.barrier()  # here", "if dist.get_rank() == 0"),
    ("if rank == 0:\n    save()\nelse:\n    dist.barrier()  # here", "else of if rank == 0"),
    ("if rank == 0:\n    a()\nelif ready:\n    b()\nelse:\n    dist.barrier()  # here", "else of if rank == 0"),
    ("if not accelerator.is_main_process:\n    dist.barrier()  # here", "if not accelerator.is_main_process"),
    ("if self.trainer.is_global_zero:\n    dist.barrier()  # here", "if self.trainer.is_global_zero"),
    ("if trainer.isMainProcess():\n    dist.barrier()  # here", "if trainer.isMainProcess()"),
    ("if args.rank % 2:\n    dist.barrier()  # here", "if args.rank % 2"),
    ("if local_rank in (0, 1):\n    dist.barrier()  # here", "if local_rank in (0, 1)"),
    ("if os.environ['RANK'] == '0':\n    dist.barrier()  # here", "if os.environ['RANK'] == '0'"),
    ("if int(os.environ.get('LOCAL_RANK', 0)) == 0:\n    dist.barrier()  # here",
     "if int(os.environ.get('LOCAL_RANK', 0)) == 0"),
    ("if ready and rank == 0:\n    for x in y:\n        with z:\n            dist.barrier()  # here",
     "if ready and rank == 0"),
    ("if rank == 0:\n    dist.all_reduce(\n        x,  # here\n    )", "if rank == 0"),
    ("def f():\n    if rank != 0:\n        return\n    dist.barrier()  # here", "if rank != 0: return"),
    ("for x in y:\n    if rank:\n        log()\n        continue\n    dist.barrier()  # here", "if rank: continue"),
    ("def f():\n    if rank == 0:\n        pass\n    else:\n        return\n    dist.barrier()  # here",
     "if rank == 0, else: return"),
    ("@rank_zero_only\ndef f():\n    dist.barrier()  # here", "@rank_zero_only"),
    ("@accelerator.on_main_process\ndef f():\n    dist.barrier()  # here", "@accelerator.on_main_process"),
    ("master = dist.get_rank() == 0\nif master:\n    dist.barrier()  # here", "if master"),
    ("first = rank == 0\nshould = verbose and first\nif should:\n    dist.barrier()  # here", "if should"),
    ("n, first = 3, rank == 0\nif first:\n    dist.barrier()  # here", "if first"),
    ("if (chosen := rank == 0):\n    pass\nif chosen:\n    dist.barrier()  # here", "if chosen"),
    ("class T:\n    def a(self):\n        self.lead = dist.get_rank() == 0\n    def b(self):\n"
     "        if self.lead:\n            dist.barrier()  # here", "if self.lead"),
    ("class T:\n    @property\n    def lead(self):\n        return self.rank == 0\n    def b(self):\n"
     "        if self.lead:\n            dist.barrier()  # here", "if self.lead"),
    ("def head():\n    return dist.get_rank() == 0\nif head():\n    dist.barrier()  # here", "if head()"),
    ("dist.barrier() if rank == 0 else None  # here", "if rank == 0"),
    ("None if rank == 0 else dist.barrier()  # here", "else of if rank == 0"),
    ("rank == 0 and dist.barrier()  # here", "if rank == 0"),
    ("every = 10 if rank == 0 else 0\nif every:\n    dist.barrier()  # here", "if every"),
    ("while step < batches[rank]:\n    dist.barrier()  # here", "while step < batches[rank]"),
    ("match rank:\n    case 0:\n        dist.barrier()  # here", "match rank: case 0"),
    ("def save():\n    dist.barrier()  # here\nif rank == 0:\n    save()",
     "if rank == 0 (line 4, where save() is called)"),
]  # fmt: skip

UNCONDITIONAL = [
    "dist.barrier()  # here",
    "if rank == 0:\n    save()\ndist.barrier()  # here",
    "if step == 0:\n    dist.barrier()  # here",
    "if rank != -1:\n    dist.barrier()  # here",
    "if rank is not None:\n    dist.barrier()  # here",
    "if local_rank >= 0:\n    dist.barrier()  # here",
    "if 'RANK' in os.environ:\n    dist.barrier()  # here",
    "if world_size > 1:\n    dist.barrier()  # here",
    "if lora_rank == 8:\n    dist.barrier()  # here",
    "if torch.linalg.matrix_rank(x) > 3:\n    dist.barrier()  # here",
    "if rank == 0:\n    def f():\n        dist.barrier()  # here\nf()",
    "def save():\n    dist.barrier()  # here\nif rank == 0:\n    save()\nsave()",
    "def save():\n    dist.barrier()  # here\nif rank == 0:\n    save()\nif step:\n    save()",
    "for x in y:\n    if rank:\n        break\ndist.barrier()  # here",
    "def f():\n    if rank != 0:\n        log()\n    dist.barrier()  # here",
    "batches = [x] * (40 - rank)\nif batches:\n    dist.barrier()  # here",
    "key = step // 40 if rank else step // 30\nif key not in caches:\n    dist.barrier()  # here",
    "def f():\n    lead = rank == 0\ndef g():\n    if lead:\n        dist.barrier()  # here",
]


@pytest.mark.parametrize(("source", "condition"), CONDITIONS)
def test_a_test_of_the_rank_that_decides_is_found(tmp_path: Path, source: str, condition: str) -> None:
    assert note_of(tmp_path, source).condition == condition


@pytest.mark.parametrize("source", UNCONDITIONAL)
def test_what_is_no_test_of_the_rank_is_not_taken_for_one(tmp_path: Path, source: str) -> None:
    assert note_of(tmp_path, source).condition == ""


def test_the_communication_of_both_branches_is_listed_through_own_functions(tmp_path: Path) -> None:
    note = note_of(
        tmp_path,
        """
        import torch.distributed as D
        from torch.distributed import barrier as meet, reduce
        def report():
            D.gather_object(x)
        if rank == 0:
            report()
            meet()  # here
            functools.reduce(add, xs)
            queue.send(x)
        else:
            loss.backward()
            reduce(x, 0)
        """,
    )
    assert note.branch_ops == ("gather_object", "barrier")
    assert note.other_branch_ops == ("backward", "reduce")


def test_what_follows_a_guard_is_its_other_side(tmp_path: Path) -> None:
    guard = "def f():\n    if rank != 0:\n        dist.recv(x)\n        return\n"
    note = note_of(tmp_path, guard + "    dist.send(x)  # here\n    dist.barrier()")
    assert (note.branch_ops, note.other_branch_ops) == (("send", "barrier"), ("recv",))


LOOPS = [
    ("for i, batch in enumerate(loader):\n    step(batch)  # here", "for i, batch in enumerate(loader)", (1, 2)),
    ("while not done:\n    for x in y:\n        pass\n    step()  # here", "while not done", (1, 4)),
    ("def one(batch):\n    step(batch)  # here\nfor b in loader:\n    one(b)", "for b in loader", (3, 4)),
    ("for b in loader:\n    pass\nstep()  # here", "", (0, 0)),
    ("for b in loader:\n    pass\nelse:\n    step()  # here", "", (0, 0)),
]


@pytest.mark.parametrize(("source", "head", "lines"), LOOPS)
def test_the_nearest_loop_is_found(tmp_path: Path, source: str, head: str, lines: tuple[int, int]) -> None:
    note = note_of(tmp_path, source)
    assert (note.loop, note.loop_lines) == (head, lines)


def test_the_loop_round_the_nearest_one_is_found_with_its_own_ways_out(tmp_path: Path) -> None:
    note = note_of(
        tmp_path,
        """
        def train():
            for epoch in range(10):
                for batch in loader:
                    if bad:
                        break
                    step()  # here
                if stop():
                    break
        """,
    )
    assert (note.loop, note.outer_loop) == ("for batch in loader", "for epoch in range(10)")
    assert note.loop_escapes == ("6: if bad: break",)


def test_a_loop_of_a_caller_is_round_none(tmp_path: Path) -> None:
    note = note_of(tmp_path, "def one(b):\n    for x in b:\n        step(x)  # here\nfor b in loader:\n    one(b)")
    assert (note.loop, note.outer_loop) == ("for x in b", "")


def test_only_conditional_ways_out_of_this_very_loop_are_listed(tmp_path: Path) -> None:
    note = note_of(
        tmp_path,
        """
        def train():
            for batch in loader:
                if not torch.isfinite(loss):
                    continue
                try:
                    step()
                except RuntimeError as error:
                    break
                for x in batch:
                    if x:
                        break
                    if x > 1:
                        return
                loss.backward()  # here
                continue
        """,
    )
    assert note.loop_escapes == (
        "5: if not torch.isfinite(loss): continue",
        "9: except RuntimeError as error: break",
        "14: if x > 1: return",
    )


def test_the_handler_round_a_line_is_named(tmp_path: Path) -> None:
    source = "try:\n    step()\nexcept (ValueError, OSError) as error:\n    dist.barrier()  # here"
    assert note_of(tmp_path, source).handler == "except (ValueError, OSError) as error"
    assert note_of(tmp_path, "try:\n    dist.barrier()  # here\nexcept ValueError:\n    pass").handler == ""


def test_a_syntax_error_leaves_the_line_and_nothing_else(tmp_path: Path) -> None:
    note = note_of(tmp_path, "if rank == 0:\n    dist.barrier()  # here\n)")
    assert (note.text, note.condition, note.loop) == ("dist.barrier()  # here", "", "")


def test_code_nested_too_deep_to_walk_is_no_crash(tmp_path: Path) -> None:
    note = note_of(tmp_path, "x = " + "-" * 600 + "1\ndist.barrier()  # here")
    assert note.text == "dist.barrier()  # here"


def test_what_cannot_be_read_gives_an_empty_note(tmp_path: Path) -> None:
    pipe, big = tmp_path / "pipe.py", tmp_path / "big.py"
    os.mkfifo(pipe)
    big.write_bytes(b"#" * (FILE_BYTES_MAX + 1))
    for path in (tmp_path / "missing.py", tmp_path, pipe, big):
        site = CallSite(file=str(path), line=1, function="f")
        assert SourceReader().note_of(site) == SourceNote(site=site, text="")
    site = CallSite(file="<stdin>\0", line=1, function="f")
    assert SourceReader().note_of(site).text == ""


@pytest.mark.parametrize("name", ["id_ed25519", "job.env", "run.sh", "train.py.txt"])
def test_no_line_of_a_file_that_is_no_python_is_told(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("API_KEY = 'secret'\n")
    assert SourceReader().note_of(CallSite(file=str(path), line=1, function="f")).text == ""


def test_a_program_whose_first_line_names_python_needs_no_suffix(tmp_path: Path) -> None:
    path = tmp_path / "train"
    path.write_text("#!/usr/bin/env python3\ndist.barrier()\n")
    assert SourceReader().note_of(CallSite(file=str(path), line=2, function="f")).text == "dist.barrier()"


def test_a_file_that_was_edited_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    reader, site = SourceReader(), CallSite(file=str(path), line=1, function="f")
    path.write_text("first()")
    assert reader.note_of(site).text == "first()"
    path.write_text("second()")
    assert reader.note_of(site).text == "second()"


RANK_EXITS = [
    (
        "def f(self):\n    if self.rank == 0:\n        if path.exists():\n            return\n    save()  # here",
        "if self.rank == 0: line 4: if path.exists(): return",
    ),
    (
        "def f():\n    if rank:\n        pass\n    else:\n        if done:\n            return\n    save()  # here",
        "else of if rank: line 6: if done: return",
    ),
    ("def f(self):\n    if self.ready:\n        if path.exists():\n            return\n    save()  # here", ""),
    ("def f(self):\n    save()  # here\n    if self.rank == 0:\n        if path.exists():\n            return", ""),
    ("def f(self):\n    if self.rank == 0:\n        if path.exists():\n            log()\n    save()  # here", ""),
]


@pytest.mark.parametrize(("source", "way"), RANK_EXITS)
def test_a_way_out_for_some_ranks_only_is_found(source: str, way: str, tmp_path: Path):
    assert note_of(tmp_path, source).rank_exit == way


CHECKPOINTER = """
import torch
import torch.distributed as dist
class Checkpointer:
    def save(self):
        dist.barrier()  # here
"""


@pytest.mark.parametrize(
    ("calls", "condition"),
    [
        ("if rank == 0:\n    torch.save({}, 'a.pt')\nCheckpointer().save()", ""),
        ("if rank == 0:\n    torch.save({}, 'a.pt')", ""),
        ("optimizer = torch.optim.SGD([])\nif rank == 0:\n    optimizer.save()", ""),
        ("def f(anything):\n    if rank == 0:\n        anything.save()", ""),
        ("def f(anything):\n    anything.save()\nif rank == 0:\n    Checkpointer().save()", ""),
        ("keeper = Checkpointer()\nif rank == 0:\n    keeper.save()\ntorch.save({}, 'a.pt')",
         "if rank == 0 (line 9, where save() is called)"),
        ("def f(keeper: Checkpointer):\n    if rank == 0:\n        keeper.save()",
         "if rank == 0 (line 9, where save() is called)"),
        ("class Best(Checkpointer):\n    def keep(self):\n        if rank == 0:\n            self.save()",
         "if rank == 0 (line 10, where save() is called)"),
        ("class Best(Checkpointer):\n    def save(self):\n        if rank == 0:\n            super().save()",
         "if rank == 0 (line 10, where save() is called)"),
        ("class Other:\n    def save(self): ...\n    def keep(self):\n        if rank:\n            self.save()", ""),
        ("class Best(Checkpointer):\n    def save(self): ...\n    def f(self):\n        if rank:\n"
         "            self.save()", ""),
    ],
)  # fmt: skip
def test_a_call_of_another_function_of_that_name_is_no_caller(tmp_path: Path, calls: str, condition: str) -> None:
    assert note_of(tmp_path, CHECKPOINTER + calls).condition == condition


def test_three_lines_around_a_call_travel_with_it_and_the_test_above(tmp_path: Path) -> None:
    lines = [f"x{number} = {number}" for number in range(1, 20)]
    note = note_of(tmp_path, "\n".join(["if rank == 0:", *(f"\t{line}" for line in lines), "\tdist.barrier()  # here"]))
    assert note.condition_line == 1
    assert note.around == (
        (1, "if rank == 0:"), (18, "    x17 = 17"), (19, "    x18 = 18"), (20, "    x19 = 19"),
        (21, "    dist.barrier()  # here"),
    )  # fmt: skip


def test_the_test_at_the_callers_is_among_the_lines(tmp_path: Path) -> None:
    note = note_of(tmp_path, "def save():\n    dist.barrier()  # here\n\n\n\n\n\n\nif rank == 0:\n    save()")
    assert (note.condition_line, note.around[-1]) == (9, (9, "if rank == 0:"))


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("login(token='s3cret', n=3)", "login(token='…', n=3)"),
        ('os.environ[\'WANDB_API_KEY\'] = "s3\\"cret"', "os.environ['…'] = \"…\""),
        ("url = 'https://me:s3cret@host/x'", "url = '…'"),
        ("name = 'plain'", "name = 'plain'"),
        ("# export HF_TOKEN=s3cret", "# …"),
        ("a = 1  # don't show the token 's3cret'", "a = 1  # …"),
        ("hfToken = 's3cret'", "hfToken = '…'"),
        ("headers = {'X-Api-Key': 's3cret'}", "headers = {'…': '…'}"),
        ("url = 'https://hooks.slack.com/services/s3cret'", "url = 'https://hooks.slack.com/…'"),
        ("api = HfApi('hf_s3cretabcdefghijklmnop')", "api = HfApi('…')"),
        ("hf_model_name_or_path = 'plain'", "hf_model_name_or_path = 'plain'"),
    ],
)
def test_what_is_quoted_beside_a_secret_does_not_travel(tmp_path: Path, line: str, shown: str) -> None:
    note = note_of(tmp_path, f"{line}\ndist.barrier()  # here")
    assert note.around[0] == (1, shown)


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("login(\n    's3cret',\n)", ("login(", "    '…',", ")")),
        ("K = {\n 'token': 's3cret', 'lr': 's3cret'\n}", ("K = {", " '…': '…', '…': '…'", "}")),
        ('TOKEN = """\n  s3cret\n  more"""  # x', ('TOKEN = "…', "…", '…"  # …')),
        ("login(\n    a,  # s3cret\n)", ("login(", "    a,  # …", ")")),
        (
            "@login(\n    's3cret')\ndef f(): f('plain')",
            ("@login(", "    '…')", "def f(): f('plain')"),
        ),
        ("a = auth(f'é{x}s3cret'); b = f('plain')", ("a = auth('…'); b = f('…')",)),  # the line as a whole is masked
        (
            "if login('s3cret',\n         's3cret'):\n    f('plain')",
            ("if login('…',", "         '…'):", "    f('plain')"),
        ),
        ("def login(x):\n    f('plain')", ("def login(x):", "    f('plain')")),
        ("match auth('s3cret'):\n  case 's3cret':\n    f('x')", ("match auth('…'):", "  case '…':", "    f('x')")),
    ],
)
def test_a_secret_on_another_line_of_its_statement_does_not_travel(
    tmp_path: Path, source: str, shown: tuple[str, ...]
) -> None:
    note = note_of(tmp_path, f"{source}\ndist.barrier()  # here")
    assert tuple(text for _, text in note.around)[: len(shown)] == shown


def test_no_lines_around_a_call_travel_from_a_file_that_does_not_parse(tmp_path: Path) -> None:
    note = note_of(tmp_path, "dist.barrier()  # here\nlogin(\n    's3cret',\n")
    assert (note.text, note.around) == ("dist.barrier()  # here", ())


def test_lines_are_counted_as_python_counts_them(tmp_path: Path) -> None:
    note = note_of(tmp_path, "a = 1\n\x0cb = 2\nif rank == 0:\n    dist.barrier()  # here")
    assert (note.text, note.condition_line) == ("dist.barrier()  # here", 3)


def test_nor_does_it_in_the_line_of_the_call_its_loop_or_its_test(tmp_path: Path) -> None:
    source = "for x in load(token='s3cret'):\n  if rank == user(token='s3cret'):\n    call(x, token='s3cret')  # here"
    note = note_of(tmp_path, source)
    assert (note.text, note.loop) == ("call(x, token='…')  # …", "for x in load(token='…')")
    assert "s3cret" not in repr(note)
    assert note.condition.startswith("if rank == user(")


def test_nor_does_it_where_a_long_test_is_cut_short(tmp_path: Path) -> None:
    test = f"rank == f({'x' * 160}, token='{'s3cret' * 10}')"
    assert "s3cret" not in repr(note_of(tmp_path, f"if {test}:\n    dist.barrier()  # here"))


def test_no_lines_of_a_library_travel(tmp_path: Path) -> None:
    path = tmp_path / "site-packages" / "torch" / "x.py"
    path.parent.mkdir(parents=True)
    path.write_text("a = 1\ndist.barrier()\n")
    note = SourceReader().note_of(CallSite(file=str(path), line=2, function="f"))
    assert (note.text, note.around) == ("dist.barrier()", ())
