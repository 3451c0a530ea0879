"""Theorems on the terminal: statement, domain, verdict, and what each assumption keeps away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvconform.solver.theorems import Proven
    from rich.console import Console


def show_proofs(console: Console, proven: Sequence[Proven], asked: int) -> None:
    """A table of all theorems, and a line of what is not proved."""
    from rich.table import Table

    table = Table(
        "", "statement and domain", "verdict", "paths", "seconds", "without its assumptions", box=None
    )
    for proof in proven:
        needed = ", ".join(
            f"{name.name}: {'refuted' if name.case is not None else name.message}"
            for name in proof.assumptions
        )
        table.add_row(
            proof.theorem.id,
            f"{proof.theorem.statement}\n{_shortened(proof.domain)}",
            proof.verdict,
            f"{proof.paths:,}",
            f"{proof.seconds:.1f}",
            needed,
        )
    console.print(table)
    count = sum(proof.verdict == "proved" for proof in proven)
    seconds = sum(proof.seconds for proof in proven)
    console.print(f"\n{count} of {asked} theorems proved on the reference in {seconds:.1f} s")
    console.print(
        "kvconform prove T2 shows one in full: all of its domain, and the counterexample to each assumption "
        "left out"
    )


def show_proof(console: Console, proof: Proven) -> None:
    """One theorem in full."""
    console.print(f"{proof.theorem.id}  {proof.theorem.statement}")
    console.print(f"  {proof.verdict} over {proof.paths:,} paths in {proof.seconds:.1f} s")
    if proof.message:
        console.print(f"  {proof.message}")
    if proof.case:
        console.print(f"  case: {_case(proof.case)}")
    console.print(f"  domain: {proof.domain}")
    for assumption in proof.assumptions:
        console.print(f"  assuming that {assumption.sentence} ({assumption.name})")
        if assumption.case is None:
            console.print(f"    not shown to be needed: {assumption.message}")
        else:
            console.print(f"    without it: {assumption.message}")
            console.print(f"    case: {_case(assumption.case)}")


LONGEST_DOMAIN = 300
"""Characters of a domain in the table; some list every field of every layer."""


def _shortened(domain: str) -> str:
    return domain if len(domain) <= LONGEST_DOMAIN else f"{domain[:LONGEST_DOMAIN]} ..."


def _case(case: Mapping[str, Any]) -> str:
    shown = (f"{name}={value}" for name, value in case.items() if value not in (None, False, "nothing"))
    return " ".join(shown)
