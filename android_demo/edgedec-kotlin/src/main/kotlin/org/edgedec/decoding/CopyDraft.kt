package org.edgedec.decoding

/**
 * Prompt lookup (Saxena 2023): the continuation of the latest earlier occurrence of the last tokens, with the
 * longest run of [LONGEST] down to [SHORTEST] tokens.
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

    /** The place of the latest earlier occurrence of the last n tokens; -1: none. */
    private fun latest(ids: List<Int>, n: Int): Int {
        val end = ids.size - n
        for (start in end - 1 downTo maxOf(0, end - WINDOW)) if ((0 until n).all { ids[start + it] == ids[end + it] }) return start
        return -1
    }

    private const val WINDOW = 4096
}
