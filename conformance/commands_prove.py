"""The command that proves the theorems about the reference."""

from __future__ import annotations

from typing import Annotated

import typer
from kvconform.conformance.exits import CONFORMS, INCOMPLETE, VIOLATED
from kvconform.conformance.screen import Stop, counting, page


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("prove")(prove_command)


def prove_command(
    theorem: Annotated[
        str | None, typer.Argument(metavar="[THEOREM]", help="T1 to T12; all by default.", show_default=False)
    ] = None,
) -> int:
    """Prove what the reference promises, and show what each assumption keeps away."""
    from kvconform.conformance.report.theorems import show_proof, show_proofs
    from kvconform.solver.theorems import THEOREMS, prove_theorem

    if theorem is not None and theorem not in THEOREMS:
        raise Stop(f"unknown theorem {theorem!r}; the theorems: {', '.join(THEOREMS)}")
    chosen = [THEOREMS[theorem]] if theorem is not None else list(THEOREMS.values())
    proven = []
    with counting("theorems", len(chosen)) as progress:
        try:
            for statement in chosen:
                proven.append(prove_theorem(statement))
                progress(len(proven))
        except KeyboardInterrupt:
            pass
    with page() as console:
        if theorem is not None and proven:
            show_proof(console, proven[0])
        else:
            show_proofs(console, proven, len(chosen))
    verdicts = {proof.verdict for proof in proven}
    if verdicts & {"violated", "broken"}:
        return VIOLATED
    return CONFORMS if verdicts == {"proved"} and len(proven) == len(chosen) else INCOMPLETE
