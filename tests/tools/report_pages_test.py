"""Pages of reports in Chromium: nothing is cut off, overlaps, is too small or too pale, at any width, light and dark.

SAMPLE_PAGES=PATH/TO/report_sample_pages report_pages_test.py PATH/TO/spillway [mpirun] [unittest's arguments]

Where Chromium is missing it ends with 77.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

from browser import CHROMIUM, Browser
from cli import MPIRUN, OTHERS, SMALL, Case, main, run

LAYOUTS = [(width, scheme, "screen") for width in (800, 1300, 2000) for scheme in ("light", "dark")]
PAPER = (718, "light", "print")  # A4 with margins of a centimeter
FAULTS = pathlib.Path(__file__).with_name("page_faults.js").read_text()
# Tables that compare more runs scroll beside their first column.
MOST_RUNS = {718: 7, 800: 6, 1300: 7, 2000: 7}
LEAST_LETTERS = {"screen": 9, "print": 6}  # pixels


def paragraph(style, text):
    return f'<p style="{style}">{text}</p>'


def table(width):
    return f'<table style="width: {width}px"><tr><td>wide</td></tr></table>'


def picture(content):
    return f'<svg viewBox="0 0 1000 20">{content}</svg>'


# What is put into a good page, by the fault that has to be found then.
BROKEN = {
    "the page is 3": table(3000),
    "is out of the page: table": table(3000),
    "is wider than its main: table": table(1200),
    "has to be scrolled, 3000 in 1124: div.wide": f'<div class="wide">{table(3000)}</div>',
    "is cut off: p": paragraph("overflow: hidden; white-space: nowrap; width: 50px", "nobody reads the end"),
    "is written out of its p": paragraph("white-space: nowrap; width: 50px", "the end stands outside"),
    "is written out of its svg: text": picture('<text x="950" y="15">this leaves the picture</text>'),
    'overlaps "one text"': picture('<text x="20" y="15">another</text><text x="20" y="15">one text</text>'),
    "is wider than its bar": picture('<rect width="9" height="20"/><text y="15" class="on-bar">long</text>'),
    "is covered: text.on-bar": picture(
        '<rect class="b" width="99" height="20"/><text x="9" y="15" class="on-bar">hidden</text>'
        '<rect class="b o" width="60" height="20"/>'
    ),
    "is of 5.0 px: p": paragraph("font-size: 5px", "tiny"),
    "has a contrast of 1.14: p": paragraph("color: #f0f0f0; background: #ffffff", "pale"),
    "has a contrast of 1.00: text.name": picture('<rect width="200" height="20"/><text y="15" class="name">x</text>'),
}


def make_reports(folder):
    """Makes reports and plans in subfolders, small ones of real runs and the largest that there may be."""
    subprocess.run([os.environ["SAMPLE_PAGES"], folder], check=True)
    plan = "--model mlp --kfac --world 4 --levels 2x2 --device-profile v100 --edges 32,64 --budget 90%".split()
    commands = {
        "unet3d": ["train", *SMALL, "--budget", "98%"],
        "mlp": ["train", *OTHERS["mlp"], "--kfac", "--compare", "unlimited,adam@0.03"],
        "plan": ["plan", *plan, "--budgets", "1MiB,300MiB"],
    }
    if MPIRUN:
        pipeline = "--steps 3 --pipeline 2 --accumulate 4 --kfac".split()
        commands["pipeline"] = ["train", *OTHERS["bp3d"], *pipeline]
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    for name, command in commands.items():
        ranks = 2 if name == "pipeline" else 0
        done = run(*command, "--report", folder / name, ranks=ranks, env=environment)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)


class ReportPages(Case):
    @classmethod
    def setUpClass(cls):
        made = tempfile.TemporaryDirectory(prefix="spillway-pages-")
        cls.addClassCleanup(made.cleanup)
        cls.reports = pathlib.Path(made.name)
        make_reports(cls.reports)
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.close)

    def faults(self, width, scheme, media):
        """The faults of the page that is open."""
        self.browser.show(width, scheme, media)
        may_scroll = f".wide:has(.runs tr > :nth-child({MOST_RUNS[width] + 2}))"
        return self.browser.evaluate(f"({FAULTS})({json.dumps(may_scroll)}, {LEAST_LETTERS[media]})")

    def test_every_page_shows_all_that_it_has(self):
        pages = sorted(self.reports.glob("*/*.html"))
        self.assertGreaterEqual(len(pages), 10)
        for page in pages:
            self.browser.open(page)
            for layout in [*LAYOUTS, PAPER]:
                with self.subTest(page=page.parent.name, layout=layout):
                    found = self.faults(*layout)
                    self.assertEqual(found, [], "\n".join(found))

    def test_faults_are_found(self):
        good = (self.reports / "session" / "report.html").read_text()
        for fault, html in BROKEN.items():
            with self.subTest(fault=fault):
                page = self.folder / "broken.html"
                page.write_text(good.replace("</main>", html + "</main>"))
                self.browser.open(page)
                found = self.faults(1300, "light", "screen")
                self.assertTrue(any(fault in one for one in found), "\n".join(found))

    def test_the_dark_page_is_dark(self):
        self.browser.open(self.reports / "session" / "report.html")
        grounds = []
        for scheme in ("light", "dark"):
            self.browser.show(800, scheme)
            grounds.append(self.browser.evaluate("getComputedStyle(document.body).backgroundColor"))
        self.assertEqual(grounds, ["rgb(255, 255, 255)", "rgb(20, 24, 31)"])


if __name__ == "__main__":
    if not CHROMIUM:
        print("Chromium is not there, which shows the pages: apt-get install --no-install-recommends chromium")
        sys.exit(77)
    main()
