package org.edgedec.decoding

/** Cuts a text that comes in pieces at the earliest stop string; what may be the beginning of one is held back. */
internal class StopStrings(private val stops: List<String>) {
    private var held = ""

    var hit = false
        private set

    /** What of the text is certain, with this piece. */
    fun push(piece: String): String {
        if (hit || stops.isEmpty()) return if (hit) "" else piece
        held += piece
        val found = found()
        val undecided = undecided()
        hit = found in 0..undecided
        val safe = held.substring(0, if (found < 0) undecided else minOf(found, undecided))
        held = if (hit) "" else held.substring(safe.length)
        return safe
    }

    /** The rest, the text having ended. */
    fun flush(): String {
        val found = found()
        val rest = if (found < 0) held else held.substring(0, found)
        hit = hit || found >= 0
        held = ""
        return rest
    }

    private fun found(): Int = stops.map(held::indexOf).filter { it >= 0 }.minOrNull() ?: -1

    /** Where the text ends in the beginning of a stop string; its length if it does not. */
    private fun undecided(): Int {
        val longest = stops.maxOf { it.length }
        for (i in maxOf(held.length - longest + 1, 0) until held.length) {
            if (stops.any { it.startsWith(held.substring(i)) }) return i
        }
        return held.length
    }
}
