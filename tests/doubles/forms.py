"""The fields of a page's form, as a browser sends them."""

from html.parser import HTMLParser


class Fields(HTMLParser):
    """Every named control of the form ``#draft`` with its values, as a browser sends it when nobody has typed."""

    def __init__(self, text):
        super().__init__()
        self.sent, self._inside, self._name, self._text = {}, False, "", None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self._inside |= given.get("id") == "draft"
        name, kind = given.get("name", ""), given.get("type", "text")
        if not self._inside:
            return
        if tag == "input" and name and (kind != "checkbox" or "checked" in given):
            self.sent.setdefault(name, []).append(given.get("value", ""))
        elif tag in ("select", "textarea"):
            self._name, self._text = name, "" if tag == "textarea" else None
        elif tag == "option" and ("selected" in given or self._name not in self.sent):
            self.sent[self._name] = [given["value"]]

    def handle_data(self, data):
        if self._text is not None:
            self._text += data

    def handle_endtag(self, tag):
        if tag == "textarea":
            self.sent[self._name], self._text = [self._text.replace("\n", "\r\n")], None
        self._inside &= tag != "form"


def fields_of(text):
    return {name: values for name, values in Fields(text).sent.items() if name not in ("csrf", "action")}
