"""A browser without script, in this process: it follows links and sends forms with what their pages held."""

import re

from fastapi.testclient import TestClient

HOST = "127.0.0.1:8700"
OUTSIDE = ("/s/", "/enter", "/login", "/oidc/")


class _Client(TestClient):
    """Asks under its session's address; ``/x`` stands for that address and ``/x``."""

    base = ""

    def request(self, method, url, **options):
        return super().request(method, url if url.startswith(OUTSIDE) else f"{self.base}{url}", **options)


class Browser:
    """Follows no redirect by itself; sends each form with the hidden fields that its page held."""

    def __init__(self, site, *, host=HOST, scheme="http"):
        self.site = site
        self.client = _Client(site.application, base_url=f"{scheme}://{host}", follow_redirects=False)
        self._shown = ("", "")  # the page that was asked for last, and its text

    def get(self, path, **options):
        answer = self.client.get(path, **options)
        self._shown = (path, answer.text)
        if self.client.base and f'data-base="{self.client.base}"' in answer.text:
            self._check_links(answer.text)
            self._check_parts(answer.text)
        return answer

    def _check_links(self, page):
        """Fails where a link leaves the session: its reader would have to log in again."""
        addresses = re.findall(r'(?:href|action|hx-get|hx-post)="(/[^"]*)"', page)
        assert {to for to in addresses if not to.startswith((f"{self.client.base}/", "/assets/"))} == set()

    def _check_parts(self, page):
        """Fails where a part does not ask for itself by its own name: a renewal would put another text there."""
        parts = re.findall(r'<section id="part-([^"]*)" [^>]*data-part="([^"]*)" hx-get="[^"]*part=([^"]*)"', page)
        assert len(parts) == page.count("data-part=")
        assert len({name for name, _, _ in parts}) == len(parts)
        assert [names for names in parts if len(set(names)) > 1 or not re.fullmatch(r"\w+", names[0])] == []

    def hidden(self, path):
        """The hidden fields of the page, which is asked for unless it is the one that is shown."""
        text = self._shown[1] if self._shown[0] == path else self.get(path).text
        self._shown = ("", "")
        return dict(re.findall(r'name="(csrf|action|sheet)" value="([^"]*)"', text))

    def post(self, path, fields=(), *, of=None, headers=None, **changes):
        sent = {**self.hidden(of or path), **dict(fields), **changes}
        return self.client.post(path, data=sent, headers=headers)

    def enter(self, secret):
        done = self.post("/enter", code=secret)
        assert done.status_code == 303, done.text
        return self.entered(done.headers["location"])

    def entered(self, address):
        """Goes on under the session's address, as the first of its screens has it."""
        self.client.base = re.match(r"/s/[\w-]{43}(?=/)", address)[0]
        return self

    def led(self, answer):
        """Where an answer leads within the session."""
        return answer.headers["location"].removeprefix(self.client.base)
