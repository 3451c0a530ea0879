"""What must hold on real memory: the laws that `kvconform.gpu_checks` checks on a device.

Only what they say is here. They have no function to be sampled: what they are about is memory that
a device really gives out, so they are not in `CATALOGUE`, and ``kvconform device`` runs them.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvconform.properties.law import NO_KIND

HOW_TO_RUN = "kvconform device"
"""The command that checks them."""


@dataclass(frozen=True)
class DeviceLaw:
    """One law about real memory; see `kvconform.properties.law.Law`, which it reads like."""

    id: str
    severity: str
    explanation: str
    reports: tuple[str, ...] = ()

    @property
    def area(self) -> str:
        """The part of the id before the slash."""
        return self.id.partition("/")[0]

    @property
    def sentence(self) -> str:
        """The law itself: the first paragraph of the explanation."""
        return self.explanation.partition("\n\n")[0]

    @property
    def kinds(self) -> tuple[str, ...]:
        """About no kind of spec: results are told apart by the codec, where there is one."""
        return (NO_KIND,)


EXACT_SPAN = DeviceLaw(
    "zero/exact-span",
    "safety",
    "Clearing a block clears that block in every layer and not a byte beside it.\n\n"
    "What is left holds another request's data; what is cleared too much is a neighbour's.",
    reports=("vllm#50276", "vllm#49696"),
)

DEVICE_LAWS: dict[str, DeviceLaw] = {
    law.id: law
    for law in (
        EXACT_SPAN,
        DeviceLaw(
            "device/allocates-what-was-computed",
            "safety",
            "The bytes really taken equal the plan, up to the allocator's documented rounding.\n\n"
            "By the allocator's own counters and, where the device has one, by its driver's; and freeing "
            "gives all of it back. A plan that takes more than it says runs out of memory when it is served.",
        ),
        DeviceLaw(
            "device/views-cover",
            "safety",
            "Each layer's view of each block covers exactly its page; a pattern written to all is read back "
            "from all.\n\n"
            "A view is compared with the page's plain byte range, so one that is off by a byte in the same "
            "way when it writes and when it reads is seen. Kernel blocks that a manager's block is split "
            "into address the same bytes.",
        ),
        DeviceLaw(
            "device/guards-survive",
            "safety",
            "Bytes before, between and after pages keep their guard pattern.\n\n"
            "What is written there is another layer's, another block's or another program's.",
        ),
        DeviceLaw(
            "device/roundtrip-bytes",
            "safety",
            "Packing one (head slot, state) writes exactly the stored bytes of its mode.\n\n"
            "At every head size, or the head size is refused: a cell that is written longer than it is "
            "counted runs into its neighbour.",
        ),
        DeviceLaw(
            "device/roundtrip-error",
            "safety",
            "Unpacking is within the mode's proved error bound, for every head size and dtype.\n\n"
            "Infinities and NaN read back as the mode says, never as a number that hides them.",
        ),
        DeviceLaw(
            "device/same-as-host",
            "agreement",
            "The device's packed bytes equal the host's.\n\n"
            "On the host itself the second source is plain Python, one element at a time. A cache that is "
            "moved between devices is read by the one that did not write it.",
        ),
        DeviceLaw(
            "device/far-offsets",
            "safety",
            "The last block of a tensor past 2 GiB and past 4 GiB is addressed right.\n\n"
            "There an offset kept in 32 bits, signed or not, wraps around to the tensor's first bytes.",
        ),
        DeviceLaw(
            "device/zero-exact",
            "safety",
            "On the device's memory, clearing a block clears exactly it: zero/exact-span, byte for byte.\n\n"
            "Over every shape of layout, the first, a middle and the last block, with all other bytes of the "
            "allocation compared before and after.",
            reports=EXACT_SPAN.reports,
        ),
    )
}
"""Every law about real memory by its id."""

SECOND_SOURCE = ("quant/content-formula", "page/content-formula")
"""Sampled laws that the codecs on real memory check as well: what is written is what is counted."""
