"""What the documentation quotes from the program is what the program prints."""
import harness


class Documents(harness.TestCase):
    def test_the_table_of_needs(self):
        text = (harness.ROOT / "docs" / "transport.md").read_text()
        quoted = text.split("<!-- needs: begin -->\n")[1].split("<!-- needs: end -->")[0]
        printed = harness.run("doctor", "--needs").stdout.decode()
        self.assertEqual(quoted.strip(), printed.strip(), "docs/transport.md: paste the output of shoal doctor --needs")

    def test_every_command_is_in_the_readme(self):
        readme = (harness.ROOT / "README.md").read_text()
        listed = harness.run("--help").stdout.decode()
        for line in listed.splitlines():
            if line.startswith("  ") and not line.startswith("  shoal"):
                self.assertIn(f"`{line.split()[0]}", readme, line)


if __name__ == "__main__":
    harness.main()
