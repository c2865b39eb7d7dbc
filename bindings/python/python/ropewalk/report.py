"""What a transfer did."""

from __future__ import annotations

from typing import Any


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            return f"{count:.4g} {unit}"
        count /= 1000
    raise AssertionError


def _rate(bits: float) -> str:
    for unit in ("bit/s", "kbit/s", "Mbit/s", "Gbit/s"):
        if bits < 1000 or unit == "Gbit/s":
            return f"{bits:.4g} {unit}"
        bits /= 1000
    raise AssertionError


class Keys(dict[str, Any]):
    """An object of JSON whose keys are attributes, too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"there is no {name} in the {type(self).__name__.lower()}") from None


class Report(Keys):
    """The report of a transfer: the keys of `ropewalk copy --json`, also as attributes.

    In a notebook it shows bytes, time, rate, the bound and what set it.
    """

    def _lines(self) -> list[tuple[str, str]]:
        seconds = self.get("seconds") or 0.0
        delivered = self.get("delivered_bytes") or 0
        lines = [
            ("outcome", str(self.get("outcome"))),
            ("delivered", f"{_bytes(delivered)} in {seconds:.3g} s"),
        ]
        if rate := self.get("bits_per_second"):
            lines.append(("rate", _rate(rate)))
        bound = self.get("bound_seconds")
        if bound and seconds:
            lines.append(("bound", f"{bound:.3g} s; {bound / seconds:.0%} of it reached"))
        if binding := self.get("binding"):
            lines.append(("limited by", ", ".join(binding)))
        if error := self.get("error"):
            lines.append(("error", str(error)))
        return lines

    def __str__(self) -> str:
        return "; ".join(f"{name} {value}" for name, value in self._lines())

    def _repr_html_(self) -> str:
        import html

        rows = "".join(
            f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" for name, value in self._lines()
        )
        return f"<table>{rows}</table>"
