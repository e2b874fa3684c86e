"""Driver resources of an opened GPU: a context, the kernels, a stream, pinned memory. They are freed when the GPU is no
longer used, after all its allocations and recordings."""

from __future__ import annotations

import weakref
from ctypes import byref, c_int, c_size_t, c_void_p
from threading import RLock

from edgedec.kernels.cuda import captures, library
from edgedec.kernels.cuda.library import check


class Handles:
    """Of one opened GPU. `took` and `gave` count what lives in its context."""

    def __init__(self, number: int, image: bytes, pinned: int) -> None:
        """image: the kernels; pinned: so many bytes of the host's memory."""
        self.lib, self._number = library.libcuda(), number
        self.context, self.module, self.stream, self.pinned = c_void_p(), c_void_p(), c_void_p(), c_void_p()
        # Reentrant, because a garbage collection may run inside these functions.
        self._lock, self._live, self._left = RLock(), 0, False
        try:
            check(self.lib.cuDevicePrimaryCtxRetain(byref(self.context), number), f"opening GPU {number}")
            self.enter()
            check(self.lib.cuModuleLoadData(byref(self.module), image), "loading kernels")
            check(self.lib.cuStreamCreate(byref(self.stream), 1), "making a stream")
            check(self.lib.cuMemAllocHost_v2(byref(self.pinned), c_size_t(pinned)), "taking pinned memory")
        except BaseException:
            self._give_back()
            raise

    def enter(self) -> None:
        """Make the context current: it is per thread, and calls may come from any thread."""
        check(self.lib.cuCtxSetCurrent(self.context), "entering the context")

    def took(self) -> None:
        with self._lock:
            self._live += 1

    def gave(self) -> None:
        with self._lock:
            self._live -= 1
        self._end()

    def leave(self) -> None:
        """Mark the GPU as unused; a garbage collection may free its remaining memory later."""
        self._left = True
        self._end()

    def _end(self) -> None:
        with self._lock:
            over = self._left and not self._live and bool(self.context)
        if over and not captures.defer(self._end):
            self._give_back()

    def _give_back(self) -> None:
        with self._lock:
            context, self.context = self.context, c_void_p()
        if not context:
            return
        self.lib.cuCtxSetCurrent(context)
        if self.stream:
            self.lib.cuStreamSynchronize(self.stream)
        if self.pinned:
            self.lib.cuMemFreeHost(self.pinned)
        if self.stream:
            self.lib.cuStreamDestroy_v2(self.stream)
        if self.module:
            self.lib.cuModuleUnload(self.module)
        self.lib.cuDevicePrimaryCtxRelease_v2(c_int(self._number))


class Use:
    """A reference to the GPU that keeps it open. At the end of the process the driver frees everything itself."""

    def __init__(self, handles: Handles) -> None:
        weakref.finalize(self, handles.leave).atexit = False
