"""What the documentation quotes from the program must be what the program prints.

Numbers that the documentation computes are computed again here.
"""
import json
import os
import re
import unittest

import numpy as np

import command_line_test as command_line
import harness
import pages

# The names and numbers of sysexits.h, as Python provides them.
SYSEXITS = {name: getattr(os, name) for name in dir(os) if name.startswith("EX_")}
# What messages name of other programs: containers, mount, hf, and engines that use NCCL. --ssl is the
# beginning of a group of our own.
OF_OTHER_PROGRAMS = {
    "--cap-add", "--enable-symm-mem", "--exclude", "--gpus", "--ipc", "--local-dir", "--memory",
    "--options-mode", "--pids-limit", "--revision", "--security-opt", "--shm-size", "--ssl",
    "--tmpfs", "--ulimit"}
# Exit code 1 is an answer and not a failure of the program, so ExitCode has no name for it.
ANSWERS = {1}


def document(path: str) -> str:
    return (harness.ROOT / path).read_text()


def table(text: str, name: str) -> list[list[str]]:
    """The cells, without the header, of the table between <!-- name: begin --> and end."""
    block = text.split(f"<!-- {name}: begin -->\n")[1].split(f"<!-- {name}: end -->")[0]
    rows = block.strip().splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def project_files() -> set[str]:
    """The paths of all project files relative to the root, without build outputs."""
    folders = ("bench", "deploy", "docs", "kernels", "models", "proto", "runtime", "scripts",
               "server", "tests")
    found = [path for folder in folders for path in (harness.ROOT / folder).rglob("*")]
    found += harness.ROOT.glob("*")
    return {path.relative_to(harness.ROOT).as_posix() for path in found if path.is_file()}


def exit_codes() -> dict[int, str]:
    """The map from number to name of enum class ExitCode.

    The header may be anywhere below server/.
    """
    [header] = (harness.ROOT / "server").rglob("exit_code.h")
    body = header.read_text().split("enum class ExitCode")[1].split("};")[0]
    return {int(number): name for name, number in re.findall(r"\b(k\w+) = (\d+),", body)}


def halves(begin: int, end: int) -> int:
    """The leaf at which a node of the canonical tree is cut.

    If the number is odd, the left half gets the additional leaf.
    """
    return begin + (end - begin + 1) // 2


def rank_leaves(ranks: int, leaves: int) -> list[tuple[int, int]]:
    """The leaves of each rank: the halves of the tree for two ranks, an even cut for three."""
    if ranks == 2:
        return [(0, halves(0, leaves)), (halves(0, leaves), leaves)]
    return [(rank * leaves // ranks, (rank + 1) * leaves // ranks) for rank in range(ranks)]


def contributions(node: tuple[int, int], own: tuple[int, int]) -> list[tuple[int, int]]:
    """The largest complete sub-trees below `node` that lie inside `own`."""
    begin, end = node
    if end <= own[0] or own[1] <= begin:
        return []
    if own[0] <= begin and end <= own[1]:
        return [node]
    middle = halves(begin, end)
    return contributions((begin, middle), own) + contributions((middle, end), own)


def left_to_right(values: list[np.float32]) -> np.float32:
    total = values[0]
    for value in values[1:]:
        total = np.float32(total + value)
    return total


def tree_sum(node: tuple[int, int], known: dict[tuple[int, int], np.float32]) -> np.float32:
    """The tree's sum of `node`, computed from the sums of the nodes that are known."""
    if node in known:
        return known[node]
    begin, end = node
    middle = halves(begin, end)
    return np.float32(tree_sum((begin, middle), known) + tree_sum((middle, end), known))


class Documents(harness.TestCase):
    @unittest.skipUnless(pages.of_documents(), "the table is for pages of 4 KiB")
    def test_the_table_of_needs(self):
        text = document("docs/transport.md")
        quoted = text.split("<!-- needs: begin -->\n")[1].split("<!-- needs: end -->")[0]
        printed = harness.run("doctor", "--needs").stdout.decode()
        self.assertEqual(quoted.strip(), printed.strip(),
                         "docs/transport.md: paste the output of shoal doctor --needs")

    def test_the_costs_of_the_rungs(self):
        """The table of the ladder has the program's numbers, and these are those of the bench."""
        needs = json.loads(harness.run("doctor", "--needs", "--json").stdout)
        costs = {rung["rung"]: (rung["cost"]["8_kib"], rung["cost"]["1_mib"])
                 for rung in needs["rungs"]}
        ladder = document("docs/transport.md").split("## The ladder for devices")[0]
        rows = re.findall(r"^\| `([a-z-]+)` \| .* \| ([\d.]+), ([\d.]+)[^|]* \|$", ladder, re.MULTILINE)
        self.assertEqual({name: (float(small), float(large)) for name, small, large in rows}, costs)
        self.assertEqual([row[0] for row in rows], list(costs), "the order of the rungs")
        bench = document("docs/benchmarks.md").split("## All-reduce, 2 ranks")[1]
        times = {}
        for name in costs:
            cells = re.search(rf"^\| {name} \|(.*)\|$", bench, re.MULTILINE)[1].split("|")
            times[name] = [float(cells[column].split()[0]) for column in (2, 5)]
        for name, cost in costs.items():
            measured = tuple(round(mine / best, 1) for mine, best in zip(times[name], times["shm"]))
            self.assertEqual(cost, measured, f"{name}: bench/collectives.py says otherwise")

    def test_every_command_is_in_the_readme(self):
        readme = document("README.md")
        listed = json.loads(harness.run("help", "--json").stdout)["commands"]
        self.assertGreaterEqual(len(listed), 11)
        for command in listed:
            self.assertIn(f"`{command['name'].split()[0]}", readme)

    def test_flags_beside_command_lines(self):
        """Those that are named where no word says `shoal`: in pieces of code that begin with a command's
        name, in the help of other flags, and in messages; and the words that a flag may be given."""
        commands, seen = command_line.commands(), 0
        every = {flag for command in commands.values() for flag in command_line.flags(command)}
        every |= {"--version", "--man", "--completion"}
        choices = {name: flag["choices"] for command in commands.values() for flag in command["flags"]
                   if flag.get("choices") for name in flag["names"]}
        for path in command_line.documents():
            for code in command_line.code_of(path.read_text()):
                words = code.split(" -- ")[0].split()
                name = " ".join(words[:2]) if words[:1] == ["bench"] else "".join(words[:1])
                given = [word.split("=")[0].rstrip(",.") for word in words if word.startswith("--")]
                if name in commands:
                    seen += len(given)
                    self.assertLessEqual(set(given), command_line.flags(commands[name]), f"{path}: {code}")
                for flag, value in re.findall(r"(--[a-z-]+)[ =]([a-z0-9][a-z0-9_.-]*)", code):
                    # vLLM's spelling is taken too.
                    if flag in choices and (flag, value) != ("--dtype", "half"):
                        self.assertIn(value, choices[flag], f"{path}: {code}")
        self.assertGreaterEqual(seen, 15)
        for name, command in commands.items():
            for flag in command["flags"]:
                for named in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*[a-z0-9]", flag["help"]):
                    self.assertIn(named, command_line.flags(command), f"{name} {flag['names'][0]}")
        for path in sorted(path for folder in ("models", "runtime", "server")
                           for path in (harness.ROOT / folder).rglob("*.cc")):
            if path.name == "foreign_flags.cc":
                continue
            for text in re.findall(r'"(?:[^"\\\n]|\\.)*"', path.read_text()):
                for named in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*[a-z0-9]", text):
                    self.assertIn(named, every | OF_OTHER_PROGRAMS, f"{path}: {text}")

    def test_the_table_of_exit_codes(self):
        codes = exit_codes()
        self.assertGreaterEqual(len(codes), 7)
        rows = table(document("README.md"), "exit codes")
        self.assertEqual([int(row[0]) for row in rows], sorted(codes.keys() | ANSWERS),
                         "README.md against ExitCode")
        for number, sysexit, meaning in rows:
            self.assertNotEqual(meaning, "")
            if int(number) > 1:
                self.assertEqual(SYSEXITS.get(sysexit.strip("`")), int(number), sysexit)

    def test_times_of_grace_suffice_for_a_shutdown(self):
        """After --shutdown-timeout the end of gRPC and of the ranks takes up to 17 s."""
        shown = json.loads(harness.run("serve", "m", "--print-config", "--json").stdout)
        least = float(shown["shutdown-timeout"]["value"]) + 17
        pods = re.findall(r"terminationGracePeriodSeconds: (\d+)", document("deploy/kubernetes.yaml"))
        self.assertTrue(pods)
        # systemd's own default is 90 s.
        units = re.findall(r"^TimeoutStopSec=(\d+)$", document("deploy/shoal.service"), re.M) or [90]
        for grace in (*pods, *units):
            self.assertGreaterEqual(float(grace), least)
        self.assertIn(f"`--shutdown-timeout` ({shown['shutdown-timeout']['value']} s)",
                      document("README.md"))

    def test_the_unit_starts_the_server_until_a_model_is_whole(self):
        """A later start can succeed after every exit code but one: that of a wrong flag."""
        unit = document("deploy/shoal.service")
        for setting in ("StartLimitIntervalSec=0", "Restart=on-failure", "RestartSec=5"):
            self.assertRegex(unit, rf"(?m)^{setting}$")
        prevented = set(re.findall(r"(?m)^RestartPreventExitStatus=(.*)$", unit)[-1].split())
        self.assertFalse(prevented & {str(code) for code in (
            harness.BAD_MODEL, harness.NO_MODEL, harness.UNAVAILABLE, harness.WORKER_DIED)})

    def test_links_lead_somewhere(self):
        for path in sorted(name for name in project_files() if name.endswith(".md")):
            for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document(path)):
                place = (harness.ROOT / path).parent / target
                self.assertTrue(place.exists(), f"{path} links to {target}")

    def test_files_that_are_named_exist(self):
        files = project_files()
        names = {file.split("/")[-1] for file in files}
        for path in sorted(name for name in files if name.endswith(".md")):
            here = (harness.ROOT / path).parent
            for named in re.findall(r"`([\w./-]+\.(?:h|cc|cu|cuh|py|proto))`", document(path)):
                if "NAME" in named:  # the recipe's contributor has yet to make this file
                    continue
                folder, _, name = named.rpartition("/")
                self.assertTrue(name in names, f"{path} names {named}: no file is called so")
                roots = [root for root in (harness.ROOT, here) if folder
                         and (root / folder).is_dir()]
                found = any((root / named).exists() for root in roots)
                self.assertTrue(found or not roots, f"{path} names {named}: it is elsewhere")

    def test_no_page_names_a_line_of_a_source(self):
        """The next change of the source would make it another line."""
        for path in sorted(name for name in project_files() if name.endswith(".md")):
            self.assertNotRegex(document(path), r"\w\.(cc|cu|h|py):\d", path)

    def test_every_field_of_the_ready_line_is_explained_in_its_order(self):
        explained = [row[0].strip("`") for row in table(document("docs/operations.md"), "ready line")]
        written = []
        for path, function in (("server/commands/serve_command.cc", "std::string ready_line("),
                               ("server/commands/fronts.cc", "std::string Fronts::addresses(")):
            body = document(path).split(function)[1].split("\n}\n")[0]
            written += re.findall(r'[" ](\w+)=', body)
        self.assertEqual(sorted(explained), sorted(written))
        server = harness.Server(harness.DEMO, "-tp", 2, "--shm-headroom", "1t", "--health-port", 0)
        self.addCleanup(server.kill)
        shown = list(server.wait_ready())
        self.assertEqual(shown, [name for name in explained if name in shown])
        self.assertIn("refused", shown)

    def test_the_picture_of_the_tree(self):
        text = document("docs/architecture.md")
        for ranks in (2, 3):
            sent = re.search(rf"^T = {ranks}  owns .*\n +sends +(.*)$", text, re.MULTILINE)
            nodes = [node for own in rank_leaves(ranks, 9) for node in contributions((0, 9), own)]
            names = [f"{begin}" if end == begin + 1 else f"{begin}..{end - 1}"
                     for begin, end in nodes]
            self.assertEqual(sent[1].split(), names, f"what {ranks} ranks send")

    def test_the_worked_sum(self):
        leaves = [np.float32(2**24)] + 8 * [np.float32(1)]
        naive, tree = [left_to_right(leaves)], []
        for ranks in (2, 3):
            owned = rank_leaves(ranks, 9)
            naive.append(left_to_right([left_to_right(leaves[slice(*own)]) for own in owned]))
        single = {(i, i + 1): leaf for i, leaf in enumerate(leaves)}
        tree.append(tree_sum((0, 9), single))
        for ranks in (2, 3):
            sent = [node for own in rank_leaves(ranks, 9) for node in contributions((0, 9), own)]
            tree.append(tree_sum((0, 9), {node: tree_sum(node, single) for node in sent}))
        rows = table(document("docs/architecture.md"), "worked sum")
        self.assertEqual([[int(cell) for cell in row[1:]] for row in rows],
                         [[int(value) for value in sums] for sums in (naive, tree)])
        self.assertEqual(len(set(tree)), 1)
        self.assertEqual(len(set(naive)), 3)


if __name__ == "__main__":
    harness.main()
