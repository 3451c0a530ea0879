"""The laws, one file per area of the catalogue."""

from kvconform.properties.laws import page

__all__ = ["page"]
