"""Follows the release pointer, and loads a release while another one answers."""
