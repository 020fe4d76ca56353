"""HTML and SVG as trees: whatever text goes in comes out as text, escaped."""

import re
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

#: What neither HTML nor XML can hold, even escaped.
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

Child = Element | str


def tag(name: str, /, *children: Child, **attributes: object) -> Element:
    """An element. `class_` is the attribute class, `text_anchor` is text-anchor."""
    written = {key.rstrip("_").replace("_", "-"): _clean(str(value)) for key, value in attributes.items()}
    element = Element(name, written)
    for child in children:
        _append(element, child)
    return element


def document(title: str, style: str, *body: Child) -> str:
    """A whole page. `style` is CSS of our own and goes in as it is."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("style", style),
    )
    root = tag("html", head, tag("body", *body), lang="en")
    return f"<!DOCTYPE html>\n{ElementTree.tostring(root, encoding='unicode', method='html')}\n"


def _append(element: Element, child: Child) -> None:
    if isinstance(child, Element):
        element.append(child)
    elif len(element):
        element[-1].tail = (element[-1].tail or "") + _clean(child)
    else:
        element.text = (element.text or "") + _clean(child)


def _clean(text: str) -> str:
    return _UNPRINTABLE.sub("\ufffd", text)
