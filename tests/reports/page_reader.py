"""Parsing of a report: elements, tables, texts and values for the script."""

import json
from html.parser import HTMLParser

VOID = {"meta", "link", "br"}


class PageReader(HTMLParser):
    """Raises where elements are not closed in the order in which they were opened."""

    def __init__(self, text):
        super().__init__()
        self.elements = []
        self.texts = []
        self.tables = []
        self.values = []
        self._open = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open and self._open[-1] == "script":
            kind = dict(self.elements[-1][1]).get("type")
            if kind == "application/json":
                self.values.append(json.loads(data, parse_constant=refuse))
        elif self._open and self._open[-1] != "style":
            self.texts.append(data)
            if self._open[-1] in ("td", "th"):
                self.tables[-1][-1][-1] += data

    def attributes(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    def rows(self, number):
        """Return a table's rows, as dicts by its heading."""
        head, *rows = self.tables[number]
        return [dict(zip(head, row, strict=True)) for row in rows]


def refuse(constant):
    raise ValueError(f"{constant} is no JSON")


def value_of(text):
    """Parse a formatted number."""
    return float(text.replace(",", ""))
