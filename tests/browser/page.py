"""A person in front of JupyterLab: opens a notebook, runs it, uses its widgets, looks at pictures.

Waiting is for what JupyterLab itself knows (a connected, idle kernel; a command that has resolved)
or for what can be seen, never for a time.
"""

import json
import urllib.request
from pathlib import Path

THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}
SCREENSHOTS = Path(__file__).parents[2] / "screenshots"
_CURRENT = "window.jupyterapp.shell.currentWidget"
_READY = f"""name => {{
    const shown = {_CURRENT}, session = shown?.sessionContext;
    return shown?.context?.path === name && session?.isReady
        && session.session?.kernel?.connectionStatus === 'connected'
        && session.session.kernel.status === 'idle';
}}"""
_IDLE = f"() => {_CURRENT}.sessionContext.session.kernel.status === 'idle'"
_ERRORS = f"""() => {_CURRENT}.content.model.sharedModel.cells.flatMap(cell =>
    (cell.toJSON().outputs ?? []).filter(output => output.output_type === 'error')
        .map(output => output.ename + ': ' + output.evalue))"""
_NOT_RUN = f"""() => {_CURRENT}.content.model.sharedModel.cells.map(cell => cell.toJSON())
    .filter(cell => cell.cell_type === 'code' && cell.source.length && !cell.execution_count)
    .length"""
_ANSWERS = ", ".join(
    f".stallscope-{name}"
    for name in ("diagnosis", "run", "ladder", "lines", "experiments", "tuning", "storage")
)
_PICTURES = ".jp-OutputArea-output img, .jp-OutputArea-output svg, .jp-OutputArea-output canvas"


class LabPage:
    def __init__(self, page, address):
        self.page = page
        self._base, _, self._token = address.partition("?")
        self._base = self._base.rpartition("/lab/tree/")[0]

    def put(self, name, notebook):
        """Write a notebook through JupyterLab's own API; a notebook from elsewhere is untrusted."""
        request = urllib.request.Request(  # noqa: S310 - the address of our own server
            f"{self._base}/api/contents/{name}?{self._token}",
            json.dumps({"type": "notebook", "content": notebook}).encode(),
            {"Content-Type": "application/json"},
            method="PUT",
        )
        with urllib.request.urlopen(request) as answer:  # noqa: S310
            assert answer.status in {200, 201}

    def open(self, name):
        self.page.goto(f"{self._base}/lab/tree/{name}?{self._token}&reset")
        self.page.wait_for_function("() => window.jupyterapp?.shell?.currentWidget")
        self._run_command("application:set-mode", "{mode: 'single-document'}")
        self.page.wait_for_function(_READY, arg=name, timeout=120_000)

    def theme(self, name):
        """Switch to a theme by JupyterLab's name for it, and wait until it shows."""
        self._run_command("apputils:change-theme", f"{{theme: '{name}'}}")
        self.page.wait_for_function(
            "name => document.body.dataset.jpThemeName === name", arg=name, timeout=30_000
        )

    def run_all(self):
        """Run every cell; return the error outputs."""
        self._run_command("runmenu:run-all", "{}")
        self.page.wait_for_function(_IDLE, timeout=200_000)
        # The kernel is idle between two cells, too, and on a busy machine the page learns later
        self.page.wait_for_function(f"() => ({_NOT_RUN})() === 0", timeout=120_000)
        self.page.wait_for_function(_IDLE, timeout=200_000)
        return self.page.evaluate(_ERRORS)

    def pictures(self):
        shown = self.page.locator(_PICTURES)
        return [shown.nth(i) for i in range(shown.count()) if shown.nth(i).bounding_box()]

    def answer(self):
        return self.page.locator(_ANSWERS).first

    def redrawn(self, part, before):
        """Wait until the picture in a part of the page is another one."""
        self.page.wait_for_function(
            "([root, before]) => root.querySelector('img')?.src !== before",
            arg=[part.element_handle(), before],
        )

    def settle(self):
        """Wait until the kernel has done all that it was asked for: it answers in order."""
        self.page.evaluate(f"() => {_CURRENT}.sessionContext.session.kernel.requestKernelInfo()")

    def panel(self, slider):
        """Return the output that holds the slider with this label."""
        output = self.page.locator(".jp-OutputArea-output").filter(
            has=self.page.locator(".widget-slider", has_text=slider)
        )
        output.last.scroll_into_view_if_needed()
        return output.last

    def stills(self):
        """Return the visible stand-ins for widgets: none where the widgets work."""
        shown = self.page.locator("[class^='stallscope-'][class$='-still']")
        return [shown.nth(i) for i in range(shown.count()) if shown.nth(i).is_visible()]

    def shot(self, name, part=None):
        """Save a screenshot of the page, or of a part of it."""
        SCREENSHOTS.mkdir(exist_ok=True)
        if part is not None:
            part.scroll_into_view_if_needed()
        (part or self.page).screenshot(path=SCREENSHOTS / f"{name}.png")

    def shots(self, name):
        """Save a screenshot of each picture in the outputs, when all of them are drawn."""
        self.settle()
        for number, picture in enumerate(self.pictures()):
            self.shot(f"{name}-picture-{number}", picture)

    def _run_command(self, command, arguments):
        self.page.evaluate(f"() => window.jupyterapp.commands.execute('{command}', {arguments})")
