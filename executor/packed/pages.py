"""Large pages for large arenas: a walk over all weights a token misses the small pages' translations at every turn.

Advice only: where the system has no such pages, or none left, nothing is different but the speed. Linux, madvise(2).
"""

from __future__ import annotations

import ctypes
import mmap

LARGE_PAGE = 2 << 20
_MADV_HUGEPAGE = 14
_MADV_COLLAPSE = 25  # Linux 6.1; older kernels answer EINVAL and collapse in the background

_libc = ctypes.CDLL(None, use_errno=True)


def advise_large_pages(address: int, nbytes: int) -> int:
    """Ask for large pages in [address, address + nbytes), filled already or not. Gives the bytes that were asked for.

    Only whole large pages inside the range; 0 where it holds none or the system refuses.
    """
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return 0
    first = -(-address // LARGE_PAGE) * LARGE_PAGE
    size = (address + nbytes - first) // LARGE_PAGE * LARGE_PAGE
    if size <= 0:
        return 0
    where = ctypes.c_void_p(first), ctypes.c_size_t(size)
    if _libc.madvise(*where, _MADV_HUGEPAGE) != 0:
        return 0
    _libc.madvise(*where, _MADV_COLLAPSE)
    return size
