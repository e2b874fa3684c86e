"""What the driver holds for an opened GPU: a context, the kernels, a stream, pinned memory. Given back when nobody uses
the GPU any more, and all that was allocated or recorded with it has gone before."""

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
        # A garbage collection may come in the middle of any of this.
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
        """The context belongs to a thread: a call may come from any."""
        check(self.lib.cuCtxSetCurrent(self.context), "entering the context")

    def took(self) -> None:
        with self._lock:
            self._live += 1

    def gave(self) -> None:
        with self._lock:
            self._live -= 1
        self._end()

    def leave(self) -> None:
        """Nobody uses the GPU any more; a collection may end what lives there after this."""
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
    """Whoever holds this uses the GPU. When a program ends the driver gives everything back itself."""

    def __init__(self, handles: Handles) -> None:
        weakref.finalize(self, handles.leave).atexit = False
