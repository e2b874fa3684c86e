package org.edgedec.decoding

/**
 * Prompt lookup (Saxena 2023): what followed the last tokens of a text where they stood before, the longest such run of
 * [LONGEST] down to [SHORTEST] tokens and its latest place.
 */
internal object CopyDraft {
    private const val LONGEST = 4
    private const val SHORTEST = 2

    fun of(ids: List<Int>, most: Int): IntArray {
        for (n in minOf(LONGEST, ids.size - 1) downTo SHORTEST) {
            val at = latest(ids, n)
            if (at >= 0) return ids.subList(at + n, minOf(at + n + most, ids.size)).toIntArray()
        }
        return IntArray(0)
    }

    /** Where the last n tokens stand the last time before the end; -1: nowhere. */
    private fun latest(ids: List<Int>, n: Int): Int {
        val end = ids.size - n
        for (start in end - 1 downTo maxOf(0, end - WINDOW)) if ((0 until n).all { ids[start + it] == ids[end + it] }) return start
        return -1
    }

    private const val WINDOW = 4096
}
