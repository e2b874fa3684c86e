package org.edgedec.text

import java.util.PriorityQueue
import org.edgedec.TextException

/** Byte-pair encoding: of the pairs of neighbours that have a merge, the one of lowest rank is joined, until there is none. */
internal class Bpe(private val vocab: Map<String, Int>, merges: List<Pair<String, String>>, private val byteFallback: Boolean, private val ignoreMerges: Boolean, unknown: String?) {
    private val texts = arrayOfNulls<String>((vocab.values.maxOrNull() ?: -1) + 1).also { if (it.size > 1 shl 24) throw TextException("model: token numbers beyond 2^24") }
    private val ranks = HashMap<Long, Int>(merges.size * 2)
    private val joined = IntArray(merges.size)
    private val unknownId = unknown?.let { vocab[it] ?: throw TextException("model: unk_token '$it' is not in the vocabulary") }
    private val known = object : LinkedHashMap<String, IntArray>(256, 0.75f, true) {
        override fun removeEldestEntry(eldest: Map.Entry<String, IntArray>) = size > CACHED
    }

    init {
        for ((text, id) in vocab) texts[id] = text
        merges.forEachIndexed { rank, (left, right) ->
            val a = vocab[left]
            val b = vocab[right]
            joined[rank] = vocab[left + right] ?: -1
            if (a == null || b == null || joined[rank] < 0) throw TextException("model: merge $rank '$left $right' names no tokens")
            ranks.putIfAbsent(pair(a, b), rank)
        }
    }

    val size: Int get() = texts.size

    fun text(id: Int): String? = texts.getOrNull(id)

    fun encode(word: String, out: IntList) {
        if (ignoreMerges) vocab[word]?.let { return out.add(it) }
        val cached = synchronized(known) { known[word] }
        val ids = cached ?: merge(letters(word))
        if (cached == null && word.length <= LONGEST_CACHED) synchronized(known) { known[word] = ids }
        out.add(ids)
    }

    /** Tokens of single characters; of bytes, or the unknown token, where the vocabulary lacks one. */
    private fun letters(word: String): IntArray {
        val out = IntList()
        var i = 0
        while (i < word.length) {
            val next = word.offsetByCodePoints(i, 1)
            val letter = word.substring(i, next)
            val id = vocab[letter]
            if (id != null) out.add(id) else unknown(letter, out)
            i = next
        }
        return out.toArray()
    }

    private fun unknown(letter: String, out: IntList) {
        val bytes = if (byteFallback) letter.toByteArray().map { vocab["<0x%02X>".format(it)] } else listOf(null)
        if (null !in bytes) bytes.forEach { out.add(it!!) } else unknownId?.let(out::add)
    }

    private class Merge(val rank: Int, val at: Int, val left: Int, val right: Int)

    private fun merge(ids: IntArray): IntArray {
        val next = IntArray(ids.size) { it + 1 }
        val previous = IntArray(ids.size) { it - 1 }
        val queue = PriorityQueue<Merge>(compareBy<Merge> { it.rank }.thenBy { it.at })
        fun offer(at: Int) {
            val right = next[at]
            if (right < ids.size) ranks[pair(ids[at], ids[right])]?.let { queue.add(Merge(it, at, ids[at], ids[right])) }
        }
        for (i in 0 until ids.size - 1) offer(i)
        while (true) {
            val best = queue.poll() ?: break
            val right = next[best.at]
            if (ids[best.at] != best.left || right >= ids.size || ids[right] != best.right) continue
            ids[best.at] = joined[best.rank]
            ids[right] = GONE
            next[best.at] = next[right]
            if (next[right] < ids.size) previous[next[right]] = best.at
            offer(best.at)
            if (previous[best.at] >= 0) offer(previous[best.at])
        }
        return ids.filter { it != GONE }.toIntArray()
    }

    private fun pair(a: Int, b: Int): Long = (a.toLong() shl 32) or b.toLong()

    private companion object {
        const val GONE = -1
        const val CACHED = 4096
        const val LONGEST_CACHED = 64
    }
}
