"""Shared by the clients: their arguments, and their assertions."""

import argparse
import ssl


def arguments(description):
    """URL --h2 --ca FILE, and further arguments of a client."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("url")
    parser.add_argument("--h2", action="store_true", help="HTTP/2; by prior knowledge where the URL is http")
    parser.add_argument("--ca", help="the authority that signed Weir's certificate")
    return parser


def trust(ca):
    return ssl.create_default_context(cafile=ca) if ca else True


def same(what, found, wanted):
    """Prints the name, and fails unless both values are equal."""
    assert found == wanted, f"{what}: found {found!r}, wanted {wanted!r}"
    text = repr(found)
    print(f"{what}: {text if len(text) < 100 else text[:97] + '...'}", flush=True)
