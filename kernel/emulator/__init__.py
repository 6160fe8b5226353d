"""A functional emulator of gfx950 machine code: it runs the assembly that Triton makes, without a GPU.

Right, not timed: it computes what each instruction does to registers, LDS and memory, one workgroup at a time, and
counts instructions.  A read or write outside the memory given to it is an error, and so is an instruction or a modifier
that it does not know.  Meanings are those of AMD's "CDNA4 Instruction Set Architecture" reference guide.

=================  =======================================================
module             what it has
=================  =======================================================
``listing``        an assembly listing as instructions, labels, directives
``formats``        E4M3 and bf16 as NumPy arrays of their bits
``memory``         global memory with guards
``wave``           registers of a wave, and how operands name them
``scalar``         instructions ``s_*``
``vector``         instructions ``v_*`` but matrix products
``elementwise``    of those, what does the same in each lane
``matrix``         ``v_mfma_*``
``transfer``       ``ds_*``, ``global_*`` and ``buffer_*``
``machine``        workgroups: barriers, waits, launching
=================  =======================================================
"""

from __future__ import annotations

from kernel.emulator.machine import Machine
from kernel.emulator.memory import AccessError, Memory
from kernel.emulator.wave import UnknownInstruction

__all__ = ["AccessError", "Machine", "Memory", "UnknownInstruction"]
